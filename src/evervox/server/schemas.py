"""The bodies that cross the wire: every field with its bounds, a sentence and an example. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from evervox.audio.encoders import AudioFormat  # noqa: TC001  read by pydantic
from evervox.request import Priority  # noqa: TC001  read by pydantic

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
MAX_INPUT = 4096
MAX_SEED = 2**63 - 1


def _whole(value: object) -> object:
    """7.0 is an integer in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
"""A voice, adapter or tenant: letters, digits, `-` and `_`, at most 64, so that it is safe in a path, a label and a log."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_INPUT)]
Int = Annotated[int, BeforeValidator(_whole)]
Base64 = Annotated[str, WithJsonSchema({"type": "string", "format": "byte"})]


def _field(default: Any, description: str, *examples: Any, **bounds: Any) -> Any:
    return Field(default, description=description, examples=list(examples) or None, **bounds)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class VoiceRef(Strict):
    """A voice by id, as the OpenAI SDK sends it."""

    id: Name = _field(..., "The voice's name.", "ada")


class SpeechBody(Strict):
    """`POST /v1/audio/speech`: OpenAI's fields, then ours."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": "Hello there.", "voice": "default", "response_format": "wav", "seed": 7}]}
    )

    input: Text = _field(..., "The text to speak.", "Hello there.", pattern=r"\S")
    model: str | None = _field(None, "The loaded model, or an alias that the server was given.", max_length=256)
    voice: Union[Name, VoiceRef] = _field("default", "A stored voice; `default` is the model's own.", "default")
    instructions: Text | None = _field(None, "A style, for models that take one.", "calm, a little amused")
    response_format: AudioFormat = _field("mp3", "The container and codec.", "wav")
    speed: float = _field(1.0, "Faster or slower at the same pitch.", 1.25, ge=0.25, le=4.0)
    stream_format: Literal["audio", "sse"] = _field("audio", "The bytes of a file, or server-sent events.", "sse")
    seed: Int | None = _field(None, "Same seed, same audio; drawn and told where absent.", 7, ge=0, le=MAX_SEED)
    cfg_value: float = _field(2.0, "Guidance: how closely the text is followed.", 2.0, ge=0.0, le=10.0)
    inference_timesteps: Int | None = _field(
        None, "Solver steps per patch: quality against time; without it the model's own number.", 10, ge=2, le=100
    )
    max_seconds: float | None = _field(None, "Ends the audio there, with `length`.", 30.0, gt=0.0, le=3600.0)
    reference_audio: Base64 | None = _field(None, "A clip of the voice to speak with, base64.")
    prompt_audio: Base64 | None = _field(None, "A clip to continue from, base64; needs `prompt_text`.")
    prompt_text: Text | None = _field(None, "What `prompt_audio` says.", "And so it went on.")
    normalize: bool = _field(False, "Spell out numbers and abbreviations first (needs `evervox[normalize]`).", False)
    adapter: Name | None = _field(None, "A loaded adapter.")
    priority: Priority = _field("live", "`batch` yields to listeners.", "live")
    tenant: Name | None = _field(None, "Whose cache to use; set by the key where keys are on.")


class Problem(BaseModel):
    """What went wrong, in OpenAI's shape."""

    message: str = Field(description="Names the field and the limit.")
    type: str = Field(description="`invalid_request_error`, `overloaded_error`, `timeout_error` or `server_error`.")
    param: str | None = Field(description="The field, where one is at fault.")
    code: str = Field(description="Stable and machine-readable.")


class ProblemBody(BaseModel):
    error: Problem


class ModelCard(BaseModel):
    """A name that `model` may take."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "evervox"
    sample_rate: int = Field(description="Of the generated audio, hertz.")
    patch_seconds: float = Field(description="Audio per generation step.")
    has_reference: bool = Field(description="Whether `reference_audio` works.")
    inference_timesteps: int = Field(description="Solver steps per patch where a request asks for no number.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class VoiceCard(BaseModel):
    """A stored voice, in the shape of OpenAI's custom voices."""

    id: str
    name: str
    object: Literal["audio.voice"] = "audio.voice"
    type: Literal["audio_sample", "builtin"] = "audio_sample"
    created_at: int = Field(description="Seconds since 1970.")
    digest: str = Field(description="Of the clip, hexadecimal; empty for the built-in voice.")
    transcript: str | None = None
    bytes: int = Field(description="On disk.")
    shared: bool = Field(description="Whether every key may use it.")


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VoiceCard]


class VoiceDeleted(BaseModel):
    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: bool = True


class LedgerLine(BaseModel):
    """Something that outlives requests."""

    name: str
    size: int
    limit: int | None
    owner: str
    unit: str


class Stats(BaseModel):
    """What the server and its engine hold and have done."""

    ready: bool
    draining: bool
    ledger: list[LedgerLine]
    engine: dict[str, Any] = Field(description="The engine's counters.")


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    ready: bool
    reason: str | None = Field(None, description="Why not.")
