"""What a batch has done so far: one JSON object per line, appended when a line of the input is done, read when it is resumed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

NAME = "manifest.jsonl"


class Manifest:
    """`folder/manifest.jsonl`. A record has `line` and `digest`, and either `file` or `error`; the last one of a line counts."""

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        self._folder = folder
        self._done = {record["line"]: record for record in _read(path)}
        self._file = path.open("a", encoding="utf-8")
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._file.write("\n")  # the last run was ended in the middle of a record

    def has(self, line: int, digest: str) -> bool:
        """Whether this very line was spoken before and its file is still there."""
        record = self._done.get(line, {})
        return record.get("digest") == digest and "file" in record and (self._folder / record["file"]).is_file()

    def add(self, record: dict[str, Any]) -> None:
        """Append and flush."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> Manifest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _read(path: Path) -> list[dict[str, Any]]:
    """The records that can be read; a torn one is as if it were not there."""
    records: list[dict[str, Any]] = []
    if not path.is_file():
        return records
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("line"), int):
            records.append(record)
    return records
