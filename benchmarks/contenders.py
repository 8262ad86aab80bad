"""One process of `benchmarks.versus`: loads a checkpoint once, then makes patches when a line on stdin asks, timed part by part.

python -m benchmarks.contenders evervox bfloat16 FOLDER THREADS
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Clock = Callable[[], float]

CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
"""`cpu` counts only while this thread runs: for one thread on a machine that others use."""

TEXT_TOKENS = 32
"""About a sentence of ten words."""


class Contender(Protocol):
    """`generate` makes patches for `streams` sequences at once and yields after each step; `parts` collects seconds."""

    parts: Counter[str]

    def generate(self, streams: int, patches: int) -> Iterator[None]: ...


class Timer:
    """Wraps methods so that their seconds are added to `parts` under a name."""

    def __init__(self, clock: Clock) -> None:
        self.parts: Counter[str] = Counter()
        self.clock = clock

    def wrap(self, owner: Any, method: str, part: str) -> None:
        inner = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            began = self.clock()
            try:
                return inner(*args, **options)
            finally:
                self.parts[part] += self.clock() - began

        object.__setattr__(owner, method, timed)


def text_tokens(vocab_size: int = 10_000) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Of no meaning; the last asks for audio."""
    return np.append(np.random.default_rng(0).integers(300, min(vocab_size, 10_000), TEXT_TOKENS - 1), 101).astype(np.int32)


class Evervox:
    """The paged runner, as the engine drives it."""

    def __init__(self, folder: Path, dtype: str, timer: Timer, max_streams: int = 8) -> None:
        from evervox.runner.load import load
        from evervox.runner.runner import PagedRunner

        self.parts = timer.parts
        loaded = load(folder, dtype=dtype, device="cpu")
        model = loaded.model
        for owner, method, part in (
            (model.lm, "forward", "LM"),
            (model.residual, "forward", "residual"),
            (model.dit, "forward", "DiT"),
            (model.encoder, "forward", "encoder"),
            (loaded.vae, "decode", "VAE"),
        ):
            timer.wrap(owner, method, part)
        self.runner = PagedRunner(loaded, num_blocks=16 * max_streams, block_size=16, max_running=max_streams)

    def generate(self, streams: int, patches: int) -> Iterator[None]:
        from evervox.core.plan import Span, StepPlan
        from evervox.request import Sampling
        from evervox.runner.inputs import Inputs

        tokens = text_tokens(self.runner.config.vocab_size)
        empty = np.zeros((0, *self.runner.patch_shape), np.float32)
        for seq in range(streams):
            sampling = Sampling(seed=seq, timesteps=10, cfg=2.0, temperature=1.0, min_patches=patches, max_patches=patches)
            self.runner.add(seq, Inputs(tokens, np.zeros(len(tokens), np.bool_), empty, 0, sampling))
        start, stop = 0, len(tokens)
        for step in range(patches):
            blocks = [tuple(range(16 * seq, 16 * seq + -(-stop // 16))) for seq in range(streams)]
            spans = tuple(Span(seq, start, stop, blocks[seq], emits=True, adapter=None) for seq in range(streams))
            self.runner.step(StepPlan(step, spans))
            start, stop = stop, stop + 1
            yield
        for seq in range(streams):
            self.runner.release(seq)


class Voxcpm:
    """The reference package, streaming as its own `generate_streaming` does."""

    def __init__(self, folder: Path, dtype: str, timer: Timer) -> None:
        from tests.oracle import quiet, reference

        config = json.loads((folder / "config.json").read_text())
        self.is_second = config["architecture"] == "voxcpm2"
        modules = reference()
        cls = modules.model2.VoxCPM2Model if self.is_second else modules.model.VoxCPMModel
        with quiet():
            self.model = cls.from_local(str(_with_dtype(folder, config, dtype)), optimize=False, device="cpu")
        self.parts = timer.parts
        for owner, method, part in (
            (self.model.base_lm, "forward", "LM"),
            (self.model.base_lm, "forward_step", "LM"),
            (self.model.residual_lm, "forward", "residual"),
            (self.model.residual_lm, "forward_step", "residual"),
            (self.model.feat_decoder, "forward", "DiT"),
            (self.model.feat_encoder, "forward", "encoder"),
            (self.model.audio_vae, "decode", "VAE"),
        ):
            timer.wrap(owner, method, part)

    def generate(self, streams: int, patches: int) -> Iterator[None]:
        assert streams == 1, "the package makes one stream at a time"
        model, tokens = self.model, torch.from_numpy(text_tokens())[None].long()
        dtype = next(model.base_lm.parameters()).dtype
        features = torch.zeros(1, TEXT_TOKENS, model.patch_size, model.feat_dim, dtype=dtype)
        is_text, is_audio = torch.ones_like(tokens, dtype=torch.int32), torch.zeros_like(tokens, dtype=torch.int32)
        options: dict[str, Any] = {"min_len": patches, "max_len": patches, "inference_timesteps": 10, "cfg_value": 2.0}
        steps = model._inference(tokens, is_text, features, is_audio, **options, streaming=True)
        if not self.is_second:
            for latents, *_ in steps:
                model.audio_vae.decode(latents.to(torch.float32))
                yield
            return
        with model.audio_vae.streaming_decode() as decoder:
            for latents, *_ in steps:
                decoder.decode_chunk(latents.to(torch.float32))
                yield


def _with_dtype(folder: Path, config: dict[str, Any], dtype: str) -> Path:
    """The package takes its dtype from the folder: a sibling of links with another config."""
    twin = folder.with_name(f"{folder.name}-{dtype}")
    twin.mkdir(exist_ok=True)
    for path in folder.iterdir():
        link = twin / path.name
        if path.name != "config.json" and not link.exists():
            link.symlink_to(path.resolve())
    (twin / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    return twin


def measure(contender: Contender, clock: Clock, streams: int, patches: int) -> dict[str, Any]:
    """Seconds until the first step's audio, then medians over the other steps: of the whole step and of each part."""
    steps: list[float] = []
    parts: list[Counter[str]] = []
    contender.parts.clear()
    with torch.inference_mode():
        began = clock()
        for _ in contender.generate(streams, patches):
            now = clock()
            steps.append(now - began)
            parts.append(contender.parts.copy())
            contender.parts.clear()
            began = clock()
    names = ("LM", "residual", "DiT", "encoder", "VAE")
    by_part = {name: median(1000 * part[name] for part in parts[1:]) for name in names}
    return {"first_ms": 1000 * steps[0], "step_ms": median(1000 * s for s in steps[1:]), "parts_ms": by_part}


def main() -> None:
    name, dtype, folder, threads, clock = sys.argv[1:6]
    torch.set_num_threads(int(threads))
    answers = sys.stdout
    sys.stdout = sys.stderr
    began = time.perf_counter()
    kind = Evervox if name == "evervox" else Voxcpm
    contender: Contender = kind(Path(folder), dtype, Timer(CLOCKS[clock]))
    load_seconds = time.perf_counter() - began
    print(json.dumps({"load_s": load_seconds}), file=answers, flush=True)
    for line in sys.stdin:
        result = measure(contender, CLOCKS[clock], **json.loads(line))
        result["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
