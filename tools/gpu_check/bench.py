"""How long a step takes against reading its weights and doing its arithmetic. Random weights of a published size."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from tools.gpu_check.decoder import decoder_ms
from tools.gpu_check.fixtures import Talk, advance, config_of, launch, random_model, talks
from torch.utils.flop_counter import FlopCounterMode

from evervox.runner import gpu
from evervox.runner.precision import tf32
from evervox.runner.recorder import CudaRecorder, show_progress
from evervox.runner.runner import PagedRunner

if TYPE_CHECKING:
    from evervox.runner.load import Loaded

PROMPT = 100
EVALUATIONS = 9
"""Of 10 timesteps, the first of which contributes nothing."""


def measure(device: torch.device, size: str, rows: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Milliseconds per decode step by rows, the floor, the time to first audio, and what recording took."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    loaded = random_model(config_of(size), device, dtype)
    runner = make_runner(loaded, device, rows=max(rows), steps=steps)
    started = time.perf_counter()
    runner.record(show_progress)
    recording = time.perf_counter() - started
    bandwidth = copy_bandwidth(device)
    floor = 1e3 * weight_bytes(loaded) / bandwidth
    arithmetic = 1e3 * arithmetic_seconds(runner, device)
    decode = {count: decode_ms(runner, count, steps) for count in rows}
    waiting = {count: waiting_decode_ms(runner, count, steps) for count in (min(rows), max(rows))}
    found = {
        "size": size,
        "dtype": str(dtype).removeprefix("torch."),
        "shapes": len(runner.graphs),
        "shapes_dropped": [str(key) for key in runner.graphs.trimmed],
        "graph_mib": round(runner.graphs.num_bytes / 2**20),
        "graph_mib_by_shape": {str(key): round(cost / 2**20) for key, cost in runner.graphs.costs.items()},
        "recording_s": round(recording, 1),
        "copy_gb_per_s": round(bandwidth / 1e9),
        "weight_gb_per_step": round(weight_bytes(loaded) / 1e9, 2),
        "floor_ms": round(floor, 3),
        "arithmetic_ms_per_row": round(arithmetic, 4),
        "decode_ms": decode,
        "decode_ms_waiting": waiting,
        "launch_ms": {count: launch_ms(runner, count) for count in (min(rows), max(rows))},
        "decode_over_floor": {count: round(ms / floor, 2) for count, ms in decode.items()},
        "decode_over_bound": {count: round(ms / max(floor, count * arithmetic), 2) for count, ms in decode.items()},
        "stage_ms": {count: stage_ms(runner, count, device) for count in (min(rows), max(rows))},
        "decoder_ms": {max(rows): decoder_ms(loaded.vae, max(rows), loaded.config.patch_size, device)},
        "first_audio_ms": first_audio_ms(runner, 10 if device.type == "cuda" else 2),
        "eager_runs": runner.graphs.eager.total(),
        "recorded_after_start": runner.graphs.late,
    }
    del runner, loaded
    gc.collect()
    return found


def make_runner(loaded: Loaded, device: torch.device, *, rows: int, steps: int) -> PagedRunner:
    on_gpu = device.type == "cuda"
    blocks = -(-(PROMPT + steps + 20) // 16)
    return PagedRunner(
        loaded,
        num_blocks=rows * blocks,
        block_size=16,
        max_running=rows,
        max_slots=max(256, rows),
        steps_ahead=1,
        attend=gpu.kernel_attend(loaded.config, loaded.model.dtype) if on_gpu else None,
        recorder=CudaRecorder(device) if on_gpu else None,
    )


def decode_ms(runner: PagedRunner, rows: int, steps: int) -> float:
    """Milliseconds from step to step as they are served, the next one launched before this one is taken."""
    some = warm(runner, rows, steps)
    times, flight = [], launch(runner, some)
    for _ in range(steps):
        started = time.perf_counter()
        following = launch(runner, some)
        flight.result()
        flight = following
        times.append(1e3 * (time.perf_counter() - started))
    flight.result()
    release(runner, some)
    return round(median(times), 3)


def waiting_decode_ms(runner: PagedRunner, rows: int, steps: int) -> float:
    """The same, each step taken before the next is launched: what running ahead saves is the difference."""
    some = warm(runner, rows, steps)
    times = [timed(runner, some) for _ in range(steps)]
    release(runner, some)
    return round(median(times), 3)


def launch_ms(runner: PagedRunner, rows: int) -> float:
    """What the host does for one step: packing, noise, two copies and the launches."""
    some, times = warm(runner, rows, 10), []
    for _ in range(10):
        started = time.perf_counter()
        flight = launch(runner, some)
        times.append(1e3 * (time.perf_counter() - started))
        flight.result()
    release(runner, some)
    return round(median(times), 3)


def warm(runner: PagedRunner, rows: int, steps: int) -> list[Talk]:
    """Sequences with their prompts computed and room for `steps` more steps."""
    some = talks(runner, rows, PROMPT, steps + 10)
    for talk in some:
        advance(runner, [talk])
    for _ in range(3):
        advance(runner, some)
    return some


def first_audio_ms(runner: PagedRunner, repeats: int) -> float:
    """From a prompt of 100 slots in host memory to its first samples there, alone on the device."""
    times = []
    for _ in range(repeats):
        some = talks(runner, 1, PROMPT, 10)
        times.append(timed(runner, some))
        release(runner, some)
    return round(median(times), 3)


def timed(runner: PagedRunner, some: list[Talk]) -> float:
    started = time.perf_counter()
    advance(runner, some)
    return 1e3 * (time.perf_counter() - started)


def release(runner: PagedRunner, some: list[Talk]) -> None:
    for talk in some:
        runner.release(talk.seq)


def stage_ms(runner: PagedRunner, rows: int, device: torch.device) -> dict[str, float]:
    """Each stage by itself, on whatever its buffers hold."""
    found = {}
    with torch.inference_mode():
        for stage in ("decode", "begin", "solve", "finish"):
            size = runner.graphs.size_for(stage, rows)
            times = []
            for _ in range(10):
                synchronize(device)
                started = time.perf_counter()
                runner.graphs.run(stage, size)
                synchronize(device)
                times.append(1e3 * (time.perf_counter() - started))
            found[stage] = round(median(times), 3)
    return found


def weight_bytes(loaded: Loaded) -> int:
    """What one decode step must read: everything but the embedding table, the DiT once per evaluation."""
    model = loaded.model
    dit = sum(p.nbytes for p in model.dit.parameters())
    whole = sum(p.nbytes for p in model.parameters()) - model.embed_tokens.weight.nbytes
    return whole + (EVALUATIONS - 1) * dit + sum(p.nbytes for p in loaded.vae.decoder.parameters())


def arithmetic_seconds(runner: PagedRunner, device: torch.device) -> float:
    """One row's products and convolutions in a decode step, at the speed of large products in each part's dtype."""
    stages, total = runner.stages, 0.0
    for stage, times in ((stages.decode, 1), (stages.begin, 1), (stages.solve, EVALUATIONS), (stages.finish, 1)):
        with (
            torch.inference_mode(),
            FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added_product}) as counter,
        ):
            stage(1, False)
        is_audio = stage == stages.finish
        with tf32(device) if is_audio else nullcontext():
            speed = product_speed(device, runner.vae.dtype if is_audio else runner.model.dtype)
        total += times * counter.get_total_flops() / speed
    return total


def added_product(total: Any, a: Any, b: Any, **others: Any) -> int:
    """Operations of a product that is added in place, from shapes: torch's counter leaves it out."""
    return int(2 * a[0] * a[1] * b[1])


@cache
def product_speed(device: torch.device, dtype: torch.dtype) -> float:
    """Floating point operations a second of a large matrix product."""
    size = 8192 if device.type == "cuda" else 256
    a, times = torch.ones(size, size, device=device, dtype=dtype), []
    for _ in range(10):
        synchronize(device)
        started = time.perf_counter()
        a @ a
        synchronize(device)
        times.append(time.perf_counter() - started)
    return 2 * size**3 / median(times)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second read and written by a large copy on the device."""
    source = torch.empty(2**30 if device.type == "cuda" else 2**24, dtype=torch.uint8, device=device).fill_(1)
    target, times = torch.empty_like(source), []
    for _ in range(10):
        synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        times.append(time.perf_counter() - started)
    return 2 * source.nbytes / median(times)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
