"""What the host does in a decode step, with a device that takes no time: what a GPU's step must be longer than to hide it.

The worker's loop over the real runner with VoxCPM2's patch (4 latent frames of 64, 7,680 samples) whose recorded stages compute
nothing. `plan`: the scheduler; `launch`: packing, noise, filling the two buffers; `take`: reading what came back; `rest`:
committing, and encoding the chunks for the client. Medians of milliseconds, one thread.

    python -m benchmarks.host --out docs/benchmarks/host.json
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from tools.make_checkpoint import make

from evervox.conditioning.clips import ClipCache
from evervox.conditioning.layout import lay_out
from evervox.core.limits import SchedulerLimits
from evervox.core.scheduler import Scheduler
from evervox.engine import messages
from evervox.engine.blackbox import Blackbox
from evervox.engine.intake import Intake
from evervox.engine.jobs import Job
from evervox.engine.loop import Loop
from evervox.ledger import Ledger
from evervox.request import Sampling
from evervox.runner.load import load
from evervox.runner.runner import PagedRunner

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = (1, 8, 16, 32, 64)
PROMPT, WARM = 100, 5
CHANGES = {"feat_dim": 64, "audio_vae_config": {"latent_dim": 64, "decoder_dim": 64, "decoder_rates": [8, 6, 5, 2, 2, 2]}}


class Nothing:
    """A recorder, and its recordings."""

    num_bytes = 0

    def record(self, call: Callable[[], None]) -> Nothing:
        return self

    def replay(self) -> None:
        pass

    def clear(self) -> None:
        pass


class Port:
    """Encodes what is sent, as the worker's socket does."""

    def __init__(self) -> None:
        self.incoming: list[Any] = []

    def receive(self, timeout: float) -> list[Any]:
        taken, self.incoming = self.incoming, []
        return taken

    def send(self, batch: list[Any]) -> None:
        messages.encode(batch)


class Times:
    """Milliseconds of each call of the wrapped methods, by name."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    def wrap(self, owner: Any, method: str, name: str) -> None:
        inner, into = getattr(owner, method), self.of.setdefault(name, [])

        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **options)
            finally:
                into.append(1e3 * (time.perf_counter() - began))

        setattr(owner, method, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        checkpoint = make("voxcpm2", Path(folder) / "tiny", changes=CHANGES)
        found = {rows: measure(checkpoint, Path(folder), rows, options.steps) for rows in options.rows}
    print(f"{'rows':>6}" + "".join(f"{name:>10}" for name in ("step", "plan", "launch", "take", "rest")))
    for rows, parts in found.items():
        print(f"{rows:>6}" + "".join(f"{ms:>10.3f}" for ms in parts.values()))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))


def measure(checkpoint: Path, folder: Path, rows: int, steps: int) -> dict[str, float]:
    """Medians over `steps` decode steps of a full house."""
    times = Times()
    loop, port = build(checkpoint, folder, rows, steps, times)
    port.incoming += [submit(seq, steps + 2 * WARM) for seq in range(rows)]
    for _ in range(WARM):
        loop.tick()
    for values in times.of.values():
        values.clear()
    times.wrap(loop, "tick", "step")
    for _ in range(steps):
        loop.tick()
    parts = {name: median(times.of[name]) for name in ("step", "plan", "launch", "take")}
    return parts | {"rest": parts["step"] - parts["plan"] - parts["launch"] - parts["take"]}


def build(checkpoint: Path, folder: Path, rows: int, steps: int, times: Times) -> tuple[Loop, Port]:
    loaded = load(checkpoint, dtype="float32", device="cpu")
    blocks = rows * -(-(PROMPT + steps + 3 * WARM) // 16)
    nothing: Any = Nothing()
    runner = PagedRunner(
        loaded,
        num_blocks=blocks,
        block_size=16,
        max_running=rows,
        steps_ahead=1,
        attend=lambda metadata: nothing,
        recorder=nothing,
    )
    runner.record()
    limits = SchedulerLimits(
        num_blocks=blocks, max_running=rows, slots_per_step=PROMPT * rows, patch_seconds=loaded.config.patch_seconds
    )
    scheduler, port, box = Scheduler(limits, secrets.token_bytes(32)), Port(), Blackbox(folder / f"box{rows}", 2 * rows + 1)
    intake = Intake(runner, box, cache=ClipCache(0), max_queued=rows, wake=lambda: None)
    loop = Loop(runner, scheduler, intake, port=port, blackbox=box, ledger=Ledger())
    times.wrap(scheduler, "plan", "plan")
    times.wrap(loop._pipeline, "launch", "launch")
    times.wrap(loop._pipeline, "take", "take")
    return loop, port


def submit(seq: int, patches: int) -> messages.Submit:
    sampling = Sampling(seed=seq, timesteps=10, cfg=2.0, temperature=1.0, min_patches=patches, max_patches=patches)
    job = Job(lay_out([5] * (PROMPT - 1), PROMPT), sampling, wake=lambda: None)
    job.id = seq
    return job.submit(10_000)


if __name__ == "__main__":
    main()
