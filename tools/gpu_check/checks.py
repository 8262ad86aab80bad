"""What must hold on a GPU, each as a function that raises. Needs no test framework, so that it runs on bare machines."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.kernels.layouts import BLOCK_SIZE, Shape, build, random_layout
from tools.gpu_check.fixtures import advance, config_of, random_model, talks

from evervox.core.keys import root_key, text_key
from evervox.core.limits import SchedulerLimits
from evervox.core.scheduler import NewSequence, Scheduler
from evervox.layers.paged import PagedCache, SdpaAttend
from evervox.request import Sampling
from evervox.runner import gpu
from evervox.runner.inputs import Inputs
from evervox.runner.recorder import CudaRecorder
from evervox.runner.runner import PagedRunner

Check = Callable[[torch.device], str]
BLOCK, BLOCKS, RUNNING = 16, 40, 6


def attention_equals_dense(device: torch.device) -> str:
    """Against a dense float64 oracle: random layouts, poison in unused blocks, block edges, shared prefixes, long decodes."""
    rng, worst = random.Random(0), {}
    on_gpu = device.type == "cuda"
    bounds = {torch.float32: 1e-3, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
    for dtype, bound in bounds.items():
        for count in range(60 if on_gpu else 6):
            shape = Shape(16, 2, rng.choice((64, 128)), dtype)
            if count % 10 == 9:
                layout = build(rng, shape, [1] * 3, [rng.randint(500, 4000) for _ in range(3)], decode=True, padding=0, idle=2)
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
    device: torch.device, dtype: torch.dtype, *, record: bool, kernels: bool = True, running: int = RUNNING, blocks: int = BLOCKS
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
        attend=gpu.kernel_attend(loaded.config, dtype) if on_gpu and kernels else None,
        recorder=CudaRecorder(device) if on_gpu and record else None,
    )
    runner.record()
    return runner


def requests(runner: PagedRunner, count: int, seed: int = 0) -> list[tuple[NewSequence, Inputs]]:
    """Text of random length and random sampling."""
    rng, config = np.random.default_rng(seed), runner.config
    root = root_key(weights=b"w", dtype="x", adapter_load=None, tenant_salt=b"")
    made = []
    for seq in range(count):
        tokens = rng.integers(200, 500, rng.integers(1, 60)).astype(np.int32)
        sampling = Sampling(seq, int(rng.integers(3, 12)), 2.0, 1.0, min_patches=30, max_patches=int(rng.integers(3, 12)))
        empty = np.zeros((0, config.patch_size, config.latent_dim), np.float32)
        inputs = Inputs(tokens, np.zeros(len(tokens), np.bool_), empty, 0, sampling)
        made.append((NewSequence(seq, [text_key(int(t)) for t in tokens], root, sampling.max_patches), inputs))
    return made


def speak(runner: PagedRunner, wanted: list[tuple[NewSequence, Inputs]], *, slots: int = 48) -> dict[int, list[Any]]:
    """Latents and samples by sequence; a new request comes every other step."""
    limits = SchedulerLimits(
        num_blocks=BLOCKS, block_size=BLOCK, max_running=runner.rows.count, slots_per_step=slots, patch_seconds=0.16
    )
    scheduler, coming = Scheduler(limits, secret=b"s" * 32), list(wanted)
    heard: dict[int, list[Any]] = {new.seq: [] for new, _ in wanted}
    for step in range(100_000):
        if coming and step % 2 == 0:
            new, inputs = coming.pop(0)
            runner.add(new.seq, inputs)
            scheduler.submit(new, float(step))
        plan = scheduler.plan(float(step))
        result = runner.step(plan)
        for emitted in result.emitted:
            heard[emitted.seq].append((emitted.latents, emitted.samples))
        for ended in scheduler.commit(plan, result.outcomes, float(step)):
            runner.release(ended.seq)
        if scheduler.is_idle and not coming:
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
    """Twelve at once against one after another, float64, where rounding cannot flip a code of the quantiser."""
    together, alone = (runner_of(device, torch.float64, record=True) for _ in range(2))
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
        rest = speak(second, [(again, Inputs(inputs.tokens, inputs.is_audio, inputs.features, 0, inputs.sampling, made))])
        worst = max(worst, largest_difference({new.seq: whole[new.seq][4:]}, rest))
    assert worst < 1e-6, worst
    return f"{worst:.1e}"


def no_allocation_after_warm_up(device: torch.device) -> str:
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
    grown = tuple(after - was for after, was in zip(allocations(device), before, strict=True))
    assert grown == (0, 0), f"{grown[0]} allocations, {grown[1]} bytes reserved"
    return f"0 in {steps} steps of 2 rows"


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
    graph_equals_eager,
    kernels_equal_plain_attention_in_a_runner,
    batch_equals_alone,
    resumed_equals_uninterrupted,
    no_allocation_after_warm_up,
    reserved_memory_is_flat,
)
