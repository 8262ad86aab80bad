"""Batched over the paged cache == alone over contiguous memory, whatever the plans were."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from tools.make_checkpoint import KINDS, make

from evervox.conditioning.layout import PromptClip, lay_out
from evervox.core.keys import clip_key, root_key, text_key
from evervox.core.plan import StepPlan
from evervox.core.scheduler import NewSequence, Scheduler, SchedulerLimits
from evervox.request import Sampling
from evervox.runner import batch
from evervox.runner.runner import PagedRunner
from evervox.runner.simple import Patch, SimpleGenerator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evervox.conditioning.layout import Prompt
    from evervox.runner.inputs import Emitted

BLOCK = 4


@cache
def generator(kind: str) -> SimpleGenerator:
    return SimpleGenerator.load(make(kind, Path(mkdtemp(prefix="evervox-test-"))), dtype="float64", device="cpu")


@dataclass(frozen=True, eq=False)
class Case:
    seq: int
    prompt: Prompt
    sampling: Sampling


@dataclass
class Heard:
    latents: list[np.ndarray[Any, Any]] = field(default_factory=list)
    samples: list[np.ndarray[Any, Any]] = field(default_factory=list)
    reason: str | None = None

    def take(self, emitted: Emitted) -> None:
        self.latents.append(emitted.latents)
        self.samples.append(emitted.samples)


def cases(of: SimpleGenerator, count: int, rng: np.random.Generator) -> list[Case]:
    made = []
    for seq in range(count):
        tokens = rng.integers(200, 500, rng.integers(1, 25)).tolist()
        with_reference = of.config.has_reference and seq % 3 == 1
        reference = clip(of, int(rng.integers(1, 9)), seed=seq % 2) if with_reference else None
        prompt = clip(of, int(rng.integers(1, 9)), seed=9) if seq % 4 == 2 else None
        laid = lay_out(tokens, len(tokens), reference=reference, prompt=prompt, max_context=of.config.context_patches)
        sampling = Sampling(
            seed=int(rng.integers(0, 2**40)),
            timesteps=int(rng.integers(4, 21)),
            cfg=float(rng.uniform(1, 3)),
            temperature=1.0,
            min_patches=int(rng.integers(2, 20)),
            max_patches=int(rng.integers(4, 22)),
        )
        made.append(Case(seq, laid, sampling))
    return made


def clip(of: SimpleGenerator, patches: int, seed: int) -> PromptClip:
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, patches * of.config.encoder_samples_per_patch)
    return PromptClip(bytes([seed, patches] * 8), patches, samples.astype(np.float32))


def new_sequence(case: Case, done: int = 0) -> NewSequence:
    patches = iter([clip_key(c.digest, i) for c in case.prompt.clips for i in range(c.num_patches)])
    keys = [
        next(patches) if audio else text_key(int(t)) for t, audio in zip(case.prompt.tokens, case.prompt.is_audio, strict=True)
    ]
    root = root_key(weights=b"w", dtype="float64", adapter_load=None, tenant_salt=b"")
    return NewSequence(
        case.seq, keys, root, case.sampling.max_patches, priority="live", tenant="", adapter=None, done_patches=done
    )


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_mixed_requests_in_one_batch_are_as_alone(kind: str, ahead: int) -> None:
    of = generator(kind)
    wanted = cases(of, 16, np.random.default_rng(3))
    runner = PagedRunner(of.loaded, num_blocks=22, block_size=BLOCK, max_running=6, steps_ahead=ahead)
    for cache_ in runner.caches:
        cache_.keys.fill_(float("nan"))
        cache_.values.fill_(float("nan"))
    limits = SchedulerLimits(num_blocks=22, block_size=BLOCK, max_running=6, slots_per_step=8, patch_seconds=0.16)
    heard, scheduler = run(of, runner, Scheduler(limits, secret=b"s" * 32), wanted)
    assert scheduler.preemptions > 0, "the pool was too large for the test to mean anything"
    for case in wanted:
        compare(of, case, heard[case.seq])
    assert runner.rows.num_taken == 0


def run(
    of: SimpleGenerator, runner: PagedRunner, scheduler: Scheduler, wanted: list[Case], at_once: int = 1
) -> tuple[dict[int, Heard], Scheduler]:
    """Step until all are done; `at_once` new requests come every other step. As many steps ahead as the runner says."""
    heard = {case.seq: Heard() for case in wanted}
    coming, flights = list(wanted), deque[tuple[StepPlan, Any]]()
    for step in range(10_000):
        now = step * 0.05
        if step % 2 == 0:
            for case in coming[:at_once]:
                runner.add(case.seq, of.inputs(case.prompt, case.sampling))
                scheduler.submit(new_sequence(case), now)
            del coming[:at_once]
        plan = scheduler.plan(now, flights[-1][0] if flights else None)
        flights.append((plan, runner.launch(plan)))
        while len(flights) > (runner.steps_ahead if plan and not plan.is_short else 0):
            take(runner, scheduler, flights.popleft(), heard, now)
        scheduler.check()
        if scheduler.is_idle and not coming and not flights:
            return heard, scheduler
    raise AssertionError("the requests never ended")


def take(runner: PagedRunner, scheduler: Scheduler, step: tuple[StepPlan, Any], heard: dict[int, Heard], now: float) -> None:
    plan, flight = step
    result = flight.result()
    for emitted in result.emitted:
        heard[emitted.seq].take(emitted)
    for ended in scheduler.commit(plan, result.outcomes, now):
        runner.release(ended.seq)
        heard[ended.seq].reason = ended.reason


def compare(of: SimpleGenerator, case: Case, heard: Heard) -> None:
    latents, audio, reason = alone(of, case)
    assert len(heard.latents) == len(latents)
    assert heard.reason == reason
    np.testing.assert_allclose(np.stack(heard.latents), latents, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(heard.samples), audio, rtol=0, atol=1e-6)
    assert len(audio) == len(latents) * of.config.samples_per_patch


@cache
def alone(of: SimpleGenerator, case: Case) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], str | None]:
    """Latents, audio and the reason to end, from the simple generator."""
    patches: list[Patch] = []
    with mock.patch.object(of, "patches", lambda inputs: recorded(SimpleGenerator.patches(of, inputs), patches)):
        audio = np.concatenate([c.samples for c in of.stream(case.prompt, case.sampling)])
    return np.stack([p.latents.numpy() for p in patches]), audio, patches[-1].ended


def recorded(patches: Iterator[Patch], into: list[Patch]) -> Iterator[Patch]:
    for patch in patches:
        into.append(patch)
        yield patch


@cache
def resumable(kind: str) -> list[Case]:
    return cases(generator(kind), 4, np.random.default_rng(11))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [1, 2, 9])
def test_a_stream_resumed_elsewhere_goes_on_as_if_nothing_happened(kind: str, done: int) -> None:
    """What the first runner made is all that the second one is given."""
    of = generator(kind)
    for case in resumable(kind):
        inputs = of.inputs(case.prompt, case.sampling)
        patches, audio, _ = alone(of, case)
        if len(patches) <= done:
            continue
        runner = PagedRunner(of.loaded, num_blocks=60, block_size=BLOCK, max_running=2)
        limits = SchedulerLimits(num_blocks=60, block_size=BLOCK, max_running=2, slots_per_step=8, patch_seconds=0.16)
        resumed = Case(case.seq, case.prompt, case.sampling)
        heard = resume(runner, Scheduler(limits, secret=b"s" * 32), resumed, inputs, patches[:done])
        np.testing.assert_allclose(np.stack(heard.latents), patches[done:], rtol=0, atol=1e-6)
        np.testing.assert_allclose(np.concatenate(heard.samples), audio[done * of.config.samples_per_patch :], rtol=0, atol=1e-6)


def resume(runner: PagedRunner, scheduler: Scheduler, case: Case, inputs: Any, done: np.ndarray[Any, Any]) -> Heard:
    heard = Heard()
    runner.add(case.seq, replace(inputs, patches=done))
    scheduler.submit(new_sequence(case, len(done)), 0.0)
    while not scheduler.is_idle:
        plan = scheduler.plan(0.0)
        result = runner.step(plan)
        for emitted in result.emitted:
            heard.take(emitted)
        scheduler.commit(plan, result.outcomes, 0.0)
    return heard


def test_a_step_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at every stage once, in turn; the plan is given again, and the streams are as alone."""
    of = generator("voxcpm2")
    wanted = cases(of, 3, np.random.default_rng(5))
    runner = PagedRunner(of.loaded, num_blocks=200, block_size=BLOCK, max_running=3)
    fail_once(monkeypatch, of.model, "language", at=3)
    fail_once(monkeypatch, of.model, "condition", at=4)
    fail_once(monkeypatch, of.vae, "decode", at=6)
    launch = runner.launch

    def again(plan: Any) -> Any:
        for _ in range(5):
            try:
                return launch(plan)
            except OSError:
                continue
        raise AssertionError("failed too often")

    monkeypatch.setattr(runner, "launch", again)
    limits = SchedulerLimits(num_blocks=200, block_size=BLOCK, max_running=3, slots_per_step=64, patch_seconds=0.16)
    heard, _ = run(of, runner, Scheduler(limits, secret=b"s" * 32), wanted)
    monkeypatch.undo()
    for case in wanted:
        compare(of, case, heard[case.seq])


def test_a_patch_that_is_not_finite_is_refused_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    of = generator("voxcpm2")
    wanted = cases(of, 3, np.random.default_rng(5))
    runner = PagedRunner(of.loaded, num_blocks=200, block_size=BLOCK, max_running=3)
    draw, draws, refused = batch.patch_noises, iter(range(1_000_000)), 0

    def spoilt(*args: Any) -> Any:
        noise = draw(*args)
        if next(draws) in (2, 5):
            noise[0, 0, 0] = np.inf
        return noise

    def again(plan: StepPlan) -> Any:
        nonlocal refused
        try:
            done = launch(plan).result()
        except FloatingPointError:
            refused += 1
            done = launch(plan).result()
        return mock.Mock(result=lambda: done)

    monkeypatch.setattr(batch, "patch_noises", spoilt)
    launch = runner.launch
    monkeypatch.setattr(runner, "launch", again)
    limits = SchedulerLimits(num_blocks=200, block_size=BLOCK, max_running=3, slots_per_step=64, patch_seconds=0.16)
    heard, _ = run(of, runner, Scheduler(limits, secret=b"s" * 32), wanted)
    monkeypatch.undo()
    assert refused == 2
    for case in wanted:
        compare(of, case, heard[case.seq])


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> None:
    real, calls = getattr(owner, name), iter(range(1_000_000))

    def fake(*args: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise OSError("made to fail")
        return real(*args, **options)

    monkeypatch.setattr(owner, name, fake)
