"""What must hold on a GPU, each as a function that raises. Needs no test framework, so that it runs on bare machines."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tests.kernels.layouts import BLOCK_SIZE, Shape, build, random_layout
from tools.gpu_check.decoder import decoder_equals_plain_layers
from tools.gpu_check.fixtures import advance, config_of, random_model, talks

from evervox.core.keys import clip_key, root_key, text_key
from evervox.core.limits import SchedulerLimits
from evervox.core.scheduler import NewSequence, Scheduler
from evervox.layers.paged import PagedCache, SdpaAttend
from evervox.request import Sampling
from evervox.runner import gpu
from evervox.runner.inputs import Inputs
from evervox.runner.recorder import CudaRecorder
from evervox.runner.runner import PagedRunner

if TYPE_CHECKING:
    from evervox.core.plan import StepPlan
    from evervox.runner.flight import Flight

Check = Callable[[torch.device], str]
BLOCK, BLOCKS, RUNNING = 16, 40, 6


def attention_equals_dense(device: torch.device) -> str:
    """Against a dense float64 oracle: random layouts, poison in unused blocks, block edges, shared prefixes, and long contexts,
    decoded alone and beside a prefill."""
    rng, worst = random.Random(0), {}
    on_gpu = device.type == "cuda"
    bounds = {torch.float32: 1e-3, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
    for dtype, bound in bounds.items():
        for count in range(60 if on_gpu else 6):
            shape = Shape(16, 2, rng.choice((64, 128)), dtype)
            if count % 5 == 4:
                lengths = [1, 1, 1] if count % 2 else [1, 40, 1]
                priors = [rng.randint(500, 4000) for _ in lengths]
                layout = build(rng, shape, lengths, priors, decode=count % 2 == 1, padding=3, idle=2)
            else:
                layout = random_layout(rng, shape, decode=count % 2 == 0, max_spans=8, longest=49)
            layout = layout.to(str(device))
            cache = PagedCache(layout.keys[None], layout.values[None])
            out = attend_for(device, dtype)(layout.metadata).over(cache)(0, layout.query, layout.key, layout.value)
            error = float((out.double() - layout.expected).abs().max() / layout.expected.abs().max())
            assert error < bound, f"{dtype}, {shape}: {error:.1e}"
            worst[str(dtype)] = max(worst.get(str(dtype), 0.0), error)
    return ", ".join(f"{name.removeprefix('torch.')} {error:.1e}" for name, error in worst.items())


def attend_for(device: torch.device, dtype: torch.dtype) -> Any:
    """The kernels on a GPU, where they must be there; the plain form on a CPU."""
    if device.type == "cpu":
        return lambda metadata: SdpaAttend(metadata, BLOCK_SIZE)
    attend = gpu.kernel_attend(config_of("2"), dtype)
    assert attend is not None, "no kernels: is triton installed?"
    return attend


def runner_of(
    device: torch.device,
    dtype: torch.dtype,
    *,
    record: bool,
    kernels: bool = True,
    running: int = RUNNING,
    blocks: int = BLOCKS,
    steps_ahead: int = 1,
) -> PagedRunner:
    """The small model. Recorded, and with kernels, where there is a GPU."""
    loaded = random_model(config_of("small"), device, dtype)
    on_gpu = device.type == "cuda"
    runner = PagedRunner(
        loaded,
        num_blocks=blocks,
        block_size=BLOCK,
        max_running=running,
        max_slots=96,
        steps_ahead=steps_ahead,
        attend=gpu.kernel_attend(loaded.config, dtype) if on_gpu and kernels else None,
        recorder=CudaRecorder(device) if on_gpu and record else None,
    )
    runner.record()
    return runner


def requests(runner: PagedRunner, count: int, seed: int = 0) -> list[tuple[NewSequence, Inputs]]:
    """Text of random length, which every third time continues a clip, and random sampling."""
    rng, config = np.random.default_rng(seed), runner.config
    root = root_key(weights=b"w", dtype="x", adapter_load=None, tenant_salt=b"")
    made = []
    for seq in range(count):
        tokens = rng.integers(200, 500, rng.integers(1, 60)).astype(np.int32)
        sampling = Sampling(seq, int(rng.integers(3, 12)), 2.0, 1.0, min_patches=30, max_patches=int(rng.integers(3, 12)))
        heard = int(rng.integers(1, 9)) if seq % 3 == 2 else 0
        clip = rng.standard_normal((heard, config.patch_size, config.latent_dim)).astype(np.float32)
        is_audio = np.arange(len(tokens) + heard) >= len(tokens)
        inputs = Inputs(np.pad(tokens, (0, heard)), is_audio, clip, heard, sampling)
        keys = [*(text_key(int(t)) for t in tokens), *(clip_key(b"%d" % seq, patch) for patch in range(heard))]
        made.append((NewSequence(seq, keys, root, sampling.max_patches), inputs))
    return made


def speak(runner: PagedRunner, wanted: list[tuple[NewSequence, Inputs]], *, slots: int = 48) -> dict[int, list[Any]]:
    """Latents and samples by sequence; a new request comes every other step. As many steps ahead as the runner goes."""
    limits = SchedulerLimits(
        num_blocks=BLOCKS, block_size=BLOCK, max_running=runner.rows.count, slots_per_step=slots, patch_seconds=0.16
    )
    scheduler, coming = Scheduler(limits, secret=b"s" * 32), list(wanted)
    heard: dict[int, list[Any]] = {new.seq: [] for new, _ in wanted}
    flights: deque[tuple[StepPlan, Flight]] = deque()
    for step in range(100_000):
        if coming and step % 2 == 0:
            new, inputs = coming.pop(0)
            runner.add(new.seq, inputs)
            scheduler.submit(new, float(step))
        plan = scheduler.plan(float(step), flights[-1][0] if flights else None)
        flights.append((plan, runner.launch(plan)))
        while len(flights) > (runner.steps_ahead if plan and not plan.is_short else 0):
            oldest, flight = flights.popleft()
            result = flight.result()
            for emitted in result.emitted:
                heard[emitted.seq].append((emitted.latents, emitted.samples))
            for ended in scheduler.commit(oldest, result.outcomes, float(step)):
                runner.release(ended.seq)
        if scheduler.is_idle and not coming and not flights:
            return heard
    raise AssertionError("the requests never ended")


def largest_difference(one: dict[int, list[Any]], other: dict[int, list[Any]]) -> float:
    assert {seq: len(patches) for seq, patches in one.items()} == {seq: len(patches) for seq, patches in other.items()}
    pairs = [(a, b) for seq in one for p, q in zip(one[seq], other[seq], strict=True) for a, b in zip(p, q, strict=True)]
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def graph_equals_eager(device: torch.device) -> str:
    """Recorded and padded against eager and exact, both with the kernels, float32 (float64 on a CPU)."""
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    recorded, eager = (runner_of(device, dtype, record=record) for record in (True, False))
    off = largest_difference(speak(recorded, requests(recorded, 12)), speak(eager, requests(eager, 12)))
    assert off < 1e-3, off
    assert recorded.graphs.late == recorded.graphs.eager.total() == 0
    return f"{len(recorded.graphs)} shapes, {off:.1e}"


def batch_equals_alone(device: torch.device) -> str:
    """Twelve at once, a step ahead of the host, against one after another and step by step.

    In float64, where rounding cannot flip a code of the quantiser.
    """
    together, alone = (runner_of(device, torch.float64, record=True, steps_ahead=ahead) for ahead in (1, 0))
    wanted = requests(together, 12)
    singles = {seq: heard for request in wanted for seq, heard in speak(alone, [request]).items()}
    off = largest_difference(speak(together, wanted), singles)
    assert off < 1e-6, off
    return f"{off:.1e}"


def kernels_equal_plain_attention_in_a_runner(device: torch.device) -> str:
    """Whole generations in float32 with the kernels and without."""
    kernels, plain = (runner_of(device, torch.float32, record=False, kernels=kernels) for kernels in (True, False))
    off = largest_difference(speak(kernels, requests(kernels, 8)), speak(plain, requests(plain, 8)))
    assert off < 1e-3, off
    return f"{off:.1e}"


def resumed_equals_uninterrupted(device: torch.device) -> str:
    """A second runner is given the prompt and the patches made so far, and goes on."""
    first, second = (runner_of(device, torch.float64, record=True) for _ in range(2))
    wanted = [item for item in requests(first, 12) if item[0].max_patches > 5][:4]
    whole, worst = speak(first, wanted), 0.0
    for new, inputs in wanted:
        made = np.stack([latents for latents, _ in whole[new.seq][:4]])
        again = NewSequence(new.seq, new.keys, new.root, new.max_patches, done_patches=4)
        rest = speak(second, [(again, replace(inputs, patches=made))])
        worst = max(worst, largest_difference({new.seq: whole[new.seq][4:]}, rest))
    assert worst < 1e-6, worst
    return f"{worst:.1e}"


def decoding_allocates_nothing(device: torch.device) -> str:
    """500 decode steps of a full house, by the allocator's own count."""
    runner = runner_of(device, torch.float32, record=True, running=2, blocks=70)
    some = talks(runner, 2, prompt=20, patches=510)
    steps = 500 if device.type == "cuda" else 5
    for talk in some:
        advance(runner, [talk])
    advance(runner, some)
    before = allocations(device)
    for _ in range(steps):
        advance(runner, some)
    require_equal(before, allocations(device))
    return f"0 in {steps} steps of 2 rows"


def newcomers_allocate_nothing(device: torch.device) -> str:
    """Nor do requests that come and go, clips that are continued included."""
    runner = runner_of(device, torch.float32, record=True)
    count = 120 if device.type == "cuda" else 8
    speak(runner, requests(runner, 12, seed=3))
    before = allocations(device)
    speak(runner, requests(runner, count, seed=4))
    require_equal(before, allocations(device))
    return f"0 in {count} requests"


def require_equal(before: tuple[int, int], after: tuple[int, int]) -> None:
    grown = tuple(b - a for a, b in zip(before, after, strict=True))
    assert grown == (0, 0), f"{grown[0]} allocations, {grown[1]} bytes reserved"


def allocations(device: torch.device) -> tuple[int, int]:
    if device.type == "cpu":
        return 0, 0
    stats = torch.cuda.memory_stats(device)
    return stats["allocation.all.allocated"], stats["reserved_bytes.all.current"]


def reserved_memory_is_flat(device: torch.device) -> str:
    """After 2,000 requests of random length as after 50."""
    runner = runner_of(device, torch.float32, record=True)
    count = 2000 if device.type == "cuda" else 20
    speak(runner, requests(runner, 50 if count == 2000 else 5, seed=1))
    reserved, shapes = allocations(device)[1], len(runner.graphs)
    speak(runner, requests(runner, count, seed=2))
    assert allocations(device)[1] == reserved, f"{reserved} bytes became {allocations(device)[1]}"
    assert (len(runner.graphs), runner.graphs.late) == (shapes, 0)
    return f"{reserved / 2**20:.0f} MiB after {count} requests, {shapes} shapes"


CHECKS: tuple[Check, ...] = (
    attention_equals_dense,
    decoder_equals_plain_layers,
    graph_equals_eager,
    kernels_equal_plain_attention_in_a_runner,
    batch_equals_alone,
    resumed_equals_uninterrupted,
    decoding_allocates_nothing,
    newcomers_allocate_nothing,
    reserved_memory_is_flat,
)
