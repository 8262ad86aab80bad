"""The folder of an engine's sockets, in the temporary directory. Whoever makes one removes those that others died and left."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "evervox-engine-"
LOCK = "lock"
YOUNG_SECONDS = 60.0  # another process may be about to lock it


class Scratch:
    """A private folder. A lock in it, which the kernel lets go of when this process ends, says that it is in use."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(directory: Path) -> None:
    """Remove the folders here whose owner has died. Those of other users, and young ones without a lock, stay."""
    for folder in directory.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        return False
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > YOUNG_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
