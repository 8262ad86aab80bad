"""What crosses the border between the client's process and the worker's: msgpack, one list of messages per ZeroMQ frame.

Arrays cross as raw bytes with dtype and shape, so latents arrive at the model's own precision. Nothing is pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec
import numpy as np

from evervox import errors
from evervox.conditioning.layout import Prompt, PromptClip
from evervox.ledger import Line  # noqa: TC001  (msgspec reads the types of these fields)
from evervox.request import Finish, Sampling  # noqa: TC001

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A numpy array: `dtype` as numpy spells it (`<f4`), `data` in C order: the array's own memory, or the message's."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: NDArray[Any]) -> Array:
        return cls(array.dtype.str, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def numpy(self) -> NDArray[Any]:
        """A copy that owns its memory."""
        array: NDArray[Any] = np.frombuffer(self.data, self.dtype).reshape(self.shape).copy()
        return array


class Clip(msgspec.Struct, frozen=True):
    """A `PromptClip`."""

    digest: bytes
    num_patches: int
    samples: Array | None
    latents: Array | None


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Generate one sequence. `patches` `[made, patch_size, latent_dim]` are those made before; `credit` counts chunks.

    With `is_clip_only` nothing is generated: the one chunk that comes has the latents of its clips and no samples.
    """

    id: int
    tokens: Array
    is_audio: Array
    clips: list[Clip]
    target_tokens: int
    context_patches: int
    sampling: Sampling
    adapter: str | None
    tenant: str
    priority: Literal["live", "batch"]
    patches: Array | None
    credit: int
    is_clip_only: bool = False


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop a sequence; answered by `Gone`, as is any id that the worker does not know."""

    id: int


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """The reader has taken `chunks` more: the worker may send as many."""

    id: int
    chunks: int


class Load(msgspec.Struct, frozen=True, tag="load"):
    """A spare worker is needed: load the model. The answer to its `Warm`."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Leave at once."""


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """A spare worker has its libraries, and waits."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded. `pid` is the worker's."""

    pid: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The worker cannot start: an error of the package, or `EngineFailure` for any other."""

    kind: str
    message: str
    field: str | None


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A sign of life: steps completed, whether any sequence can be worked on, and where the time went.

    `model_seconds` and `total_seconds` are sums over all steps; `encode_seconds` is the age of the encode that is under way.
    """

    step: int = 0
    is_pending: bool = False
    encode_seconds: float = 0.0
    model_seconds: float = 0.0
    total_seconds: float = 0.0
    lines: list[Line] | None = None


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """Patch `index` of a sequence. `finish` is set on its last."""

    id: int
    index: int
    latents: Array
    samples: Array
    finish: Finish | None = None


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """The worker has forgotten a cancelled sequence."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A sequence ended with an error: the name of a class in `evervox.errors`, its message and its field."""

    id: int
    kind: str
    message: str
    field: str | None


ToWorker = Union[Submit, Cancel, Credit, Load, Shutdown]
ToClient = Union[Warm, Ready, Refused, Beat, Chunk, Gone, Failed]

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(list[ToWorker]).decode
decode_to_client = msgspec.msgpack.Decoder(list[ToClient]).decode


def pack_clip(clip: PromptClip) -> Clip:
    samples = None if clip.samples is None else Array.of(clip.samples)
    latents = None if clip.latents is None else Array.of(clip.latents)
    return Clip(clip.digest, clip.num_patches, samples, latents)


def unpack_prompt(message: Submit) -> Prompt:
    """The prompt as the client made it."""
    return Prompt(
        tokens=message.tokens.numpy(),
        is_audio=message.is_audio.numpy(),
        clips=tuple(
            PromptClip(clip.digest, clip.num_patches, _optional(clip.samples), _optional(clip.latents)) for clip in message.clips
        ),
        target_tokens=message.target_tokens,
        context_patches=message.context_patches,
    )


def _optional(array: Array | None) -> NDArray[Any] | None:
    return None if array is None else array.numpy()


def describe(error: BaseException) -> tuple[str, str, str | None]:
    """Kind, message and field. An error that is not the package's own becomes an `EngineFailure` that names it."""
    if isinstance(error, errors.EvervoxError):
        return type(error).__name__, str(error), getattr(error, "field", None)
    return "EngineFailure", f"{type(error).__name__}: {error}", None


def rebuild(kind: str, message: str, field: str | None) -> errors.EvervoxError:
    """The error that `describe` took apart."""
    cls = getattr(errors, kind, None)
    if not (isinstance(cls, type) and issubclass(cls, errors.EvervoxError)):
        cls = errors.EngineFailure
    error: errors.EvervoxError = cls(message)
    if isinstance(error, errors.BadRequest):
        error.field = field
    return error
