"""The bodies that cross the wire: every field with its bounds, a sentence and an example. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from evervox.audio.encoders import AudioFormat  # noqa: TC001  read by pydantic
from evervox.request import Priority  # noqa: TC001  read by pydantic

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
"""A voice, adapter or tenant: letters, digits, `-` and `_`, at most 64, so that it is safe in a path, a label and a log."""

MAX_INPUT = 4096
MAX_SEED = 2**63 - 1


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class VoiceRef(Strict):
    """A voice by id, as the OpenAI SDK sends it."""

    id: Name = Field(description="The voice's name.", examples=["ada"])


class SpeechBody(Strict):
    """`POST /v1/audio/speech`: OpenAI's fields, then ours."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": "Hello there.", "voice": "default", "response_format": "wav", "seed": 7}]}
    )

    input: str = Field(min_length=1, max_length=MAX_INPUT, description="The text to speak.", examples=["Hello there."])
    model: str | None = Field(
        None, max_length=256, description="The loaded model, or an alias the server was given.", examples=[None]
    )
    voice: Union[Name, VoiceRef] = Field(
        "default", description="A stored voice; `default` is the model's own.", examples=["default"]
    )
    instructions: str | None = Field(
        None, max_length=MAX_INPUT, description="A style, for models that take one.", examples=["calm, a little amused"]
    )
    response_format: AudioFormat = Field("mp3", description="The container and codec.", examples=["wav"])
    speed: float = Field(1.0, ge=0.25, le=4.0, description="Faster or slower at the same pitch.", examples=[1.25])
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="Bytes of a file, or server-sent events.", examples=["audio"]
    )
    seed: int | None = Field(
        None, ge=0, le=MAX_SEED, description="Same seed, same audio; chosen and returned if absent.", examples=[7]
    )
    cfg_value: float = Field(2.0, ge=0.0, le=10.0, description="Guidance: how closely the text is followed.", examples=[2.0])
    inference_timesteps: int = Field(10, ge=2, le=100, description="Solver steps per patch: quality against time.", examples=[10])
    max_seconds: float | None = Field(None, gt=0.0, le=3600.0, description="Ends the audio with `length` there.", examples=[30.0])
    reference_audio: str | None = Field(None, min_length=4, description="A clip of the voice to speak with, base64.")
    prompt_audio: str | None = Field(None, min_length=4, description="A clip to continue from, base64; needs `prompt_text`.")
    prompt_text: str | None = Field(None, min_length=1, max_length=MAX_INPUT, description="What `prompt_audio` says.")
    normalize: bool = Field(False, description="Spell out numbers and abbreviations first (needs `evervox[normalize]`).")
    adapter: Name | None = Field(None, description="A loaded adapter.")
    priority: Priority = Field("live", description="`batch` yields to listeners.", examples=["live"])
    tenant: Name | None = Field(None, description="Whose cache to use; set by the key where keys are on.")


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
