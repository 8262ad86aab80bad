"""The paged runner on a CPU, driven a step ahead as on a GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

from evervox.runner import runner

if TYPE_CHECKING:
    from pathlib import Path

    from evervox.config import Settings


def create(folder: Path, settings: Settings) -> runner.PagedRunner:
    with mock.patch.object(runner, "PagedRunner", partial(runner.PagedRunner, steps_ahead=1)):
        return runner.create(folder, settings)
