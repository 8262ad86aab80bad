"""A recorded step == an eager one == alone, with poison wherever padding may go. Recordings replay tensor operations alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.runner.fakes import StaticAttend, TapeRecorder
from tests.runner.test_runner import BLOCK, cases, clip, compare, generator, run
from tools.make_checkpoint import KINDS

from evervox.conditioning.layout import lay_out
from evervox.core.scheduler import Scheduler, SchedulerLimits
from evervox.runner import staging
from evervox.runner.runner import PagedRunner

if TYPE_CHECKING:
    from evervox.core.plan import StepPlan
    from evervox.runner.flight import Flight

BLOCKS, RUNNING, SLOTS = 22, 4, 32
NAN = float("nan")


class Watched:
    """A recorded runner. Poisons padding's row and block before each step; checks afterwards that nothing else than the plan's
    own rows and slots has changed."""

    def __init__(self, kind: str, ahead: int = 0) -> None:
        self.runner = PagedRunner(
            generator(kind).loaded,
            num_blocks=BLOCKS,
            block_size=BLOCK,
            max_running=RUNNING,
            max_slots=SLOTS,
            steps_ahead=ahead,
            attend=StaticAttend,
            recorder=TapeRecorder(),
        )
        self.runner.record()
        self.steps, self.shapes = 0, len(self.runner.graphs)
        for cache in self.runner.caches:
            cache.keys.fill_(NAN)
            cache.values.fill_(NAN)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def launch(self, plan: StepPlan) -> Flight:
        runner = self.runner
        for cache in runner.caches:
            cache.keys[:, 0], cache.values[:, 0] = NAN, NAN
        runner.rows.last[-1], runner.rows.tails.state[-1] = NAN, NAN
        before = self.state()
        seated = {seq: resident.row for seq, resident in runner._residents.items()}
        flight = runner.launch(plan)
        self.check(plan, before, seated)
        self.steps += bool(plan)
        assert len(runner.graphs) == self.shapes
        assert runner.graphs.eager.total() == runner.graphs.late == 0
        return flight

    def state(self) -> list[torch.Tensor]:
        """Caches by flat slot, last patches and tails by row."""
        caches = [x for c in self.runner.caches for x in (c.keys, c.values)]
        return [x.flatten(1, 2).transpose(0, 1).flatten(1).clone() for x in caches] + [
            self.runner.rows.last.flatten(1).clone(),
            self.runner.rows.tails.state.clone(),
        ]

    def check(self, plan: StepPlan, before: list[torch.Tensor], seated: dict[int, int | None]) -> None:
        written = {
            (span.blocks[at // BLOCK] + 1) * BLOCK + at % BLOCK for span in plan.spans for at in range(span.start, span.stop)
        }
        rows = {self.runner._residents[span.seq].row for span in plan.spans if span.emits or seated[span.seq] is None}
        for old, new in zip(before, self.state(), strict=True):
            is_cache = len(new) != RUNNING + 1
            allowed = written | set(range(BLOCK)) if is_cache else rows | {RUNNING}
            same = torch.isclose(old, new, rtol=0, atol=0, equal_nan=True).all(1)
            assert set(torch.nonzero(~same).flatten().tolist()) <= allowed


def limits(slots: int) -> SchedulerLimits:
    return SchedulerLimits(num_blocks=BLOCKS, block_size=BLOCK, max_running=RUNNING, slots_per_step=slots, patch_seconds=0.16)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_give_what_each_request_gives_alone(kind: str, ahead: int) -> None:
    of, watched = generator(kind), Watched(kind, ahead)
    some = cases(of, 6, np.random.default_rng(3))
    # schedules as unequal as they come: the short one's rows must rest while the others go on
    wanted = [replace(case, sampling=replace(case.sampling, timesteps=2)) if case.seq % 2 else case for case in some]
    heard, _ = run(of, watched, Scheduler(limits(24), secret=b"s" * 32), wanted)
    for case in wanted:
        compare(of, case, heard[case.seq])


class Copied:
    """An event of a copy that is over when it is asked for, and not before."""

    def record(self) -> None:
        assert not self.pending
        self.pending = True

    def synchronize(self) -> None:
        self.pending = False

    pending = False


def test_two_host_buffers_that_take_turns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: what is not written in a step is sent as it was two steps before, and no buffer is sent twice unawaited."""

    def sides(there: torch.Tensor) -> list[staging.Side]:
        rubbish = [torch.full_like(there, 255) for _ in range(2)]
        return [staging.Side(buffer, Copied()) for buffer in rubbish]  # type: ignore[arg-type]

    monkeypatch.setattr(staging, "host_sides", sides)
    of, watched = generator("voxcpm2"), Watched("voxcpm2", ahead=1)
    wanted = cases(of, 8, np.random.default_rng(8))
    heard, _ = run(of, watched, Scheduler(limits(24), secret=b"s" * 32), wanted)
    for case in wanted:
        compare(of, case, heard[case.seq])


@pytest.mark.parametrize("plans", [100, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_random_plans_use_the_table_and_touch_their_own_rows_and_slots_only(plans: int) -> None:
    of, watched = generator("voxcpm2"), Watched("voxcpm2", ahead=1)
    rng = np.random.default_rng(8)
    while watched.steps < plans:
        scheduler = Scheduler(limits(int(rng.integers(7, SLOTS + 1))), secret=b"s" * 32)
        wanted = cases(of, int(rng.integers(1, 17)), rng)
        short = [replace(case, sampling=replace(case.sampling, timesteps=int(rng.integers(2, 6)))) for case in wanted]
        run(of, watched, scheduler, short, at_once=int(rng.integers(1, 6)))
    for together in (2, 4):  # all heard something before, and begin in one step
        continued = [
            replace(short[0], seq=seq, prompt=lay_out([200 + seq], 1, prompt=clip(of, 2, seed=seq))) for seq in range(together)
        ]
        run(of, watched, Scheduler(limits(SLOTS), secret=b"s" * 32), continued, at_once=together)
    unused = {str(key) for key, recording in watched.graphs._table.items() if not recording.replays}
    assert unused <= {"encode 32"}
