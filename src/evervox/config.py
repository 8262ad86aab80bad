"""The settings, read here only: keyword arguments first, then `EVERVOX_*` variables, then the defaults below."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from typing_extensions import Self

from evervox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1024 * 1024


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read(cls, **given: Any) -> Self:
        """Raises `ConfigError` naming the setting, its bound and the value."""
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError("; ".join(_explain(detail) for detail in error.errors())) from None


class Settings(_Settings):
    """What an engine is started with. Frozen; bytes are bytes, times are seconds."""

    model_config = SettingsConfigDict(env_prefix="EVERVOX_")

    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64", "int8"] = "auto"
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads of the worker; None: one for a small model, else torch's choice"
    )

    max_running: int = Field(16, ge=1, le=1024, description="sequences that hold memory on the device at once")
    max_waiting: int = Field(64, ge=0, le=100_000, description="requests beyond `max_running` that may be open")
    slots_per_step: int = Field(256, ge=1, le=65_536, description="slots that one step computes at most")
    block_size: int = Field(16, ge=1, le=1024, description="slots per block of the KV cache")
    kv_bytes: int | None = Field(None, ge=1, description="KV cache; None sizes it from the device")
    device_share: float = Field(0.9, gt=0, le=1, description="share of a GPU's memory that the worker may use")
    graphs: bool = Field(True, description="record the steps of a GPU at start; False runs all of them eagerly")
    graph_memory: int | None = Field(None, ge=0, description="bytes for recorded steps; None is a tenth of the GPU's memory")
    first_audio_target: float = Field(0.5, gt=0, le=60, description="time to first audio that the scheduler aims at")

    stream_buffer: int = Field(64, ge=1, le=4096, description="chunks made ahead of a slow reader before its stream is held")
    clip_cache_bytes: int = Field(256 * MIB, ge=0, description="encoded clips that the worker keeps")
    max_text: int = Field(4096, ge=1, le=1_000_000, description="characters of one request")
    max_clip_seconds: float = Field(60.0, gt=0, le=600, description="audio of one clip")
    max_clip_bytes: int = Field(100 * MIB, ge=1, description="file of one clip")
    piece_text: int = Field(300, ge=20, le=4096, description="characters of one piece that a long text is split into")

    request_timeout: float | None = Field(None, gt=0, description="for requests that bring none")
    start_timeout: float = Field(600.0, gt=0, description="for a worker to load its model")
    step_timeout: float = Field(30.0, gt=0, description="without a completed step while work is pending: the worker is stuck")
    stop_timeout: float = Field(5.0, gt=0, description="for a worker to leave when asked")
    max_restarts: int = Field(5, ge=0, le=1000, description="restarts in a row in which no patch was made")
    spare: bool = Field(False, description="keep a second process ready, its libraries loaded, for a worker that dies")
    restart_backoff: float = Field(0.5, ge=0, le=60, description="doubled by each restart in a row after the first")

    runner: str = Field("evervox.runner.runner:create", pattern=r"^[\w.]+:\w+$", description="factory of the runner")


class ServerSettings(_Settings):
    """What the HTTP server is started with. Frozen; bytes are bytes, times are seconds."""

    model_config = SettingsConfigDict(env_prefix="EVERVOX_SERVER_")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535, description="0 takes any free one")
    spare: bool = Field(True, description="keep a second worker process ready, its libraries loaded (160 MiB), for one that dies")
    max_open: int = Field(256, ge=1, le=100_000, description="speech requests open at once")
    request_timeout: float = Field(300.0, gt=0, le=86_400, description="for one request, body and audio together")
    drain_timeout: float = Field(30.0, ge=0, le=86_400, description="for open streams to finish after SIGTERM")
    max_body_bytes: int = Field(48 * MIB, ge=1024, description="a request's body")
    max_clip_bytes: int = Field(16 * MIB, ge=1024, description="a clip, decoded from base64 or uploaded")
    encoder_threads: int = Field(2, ge=1, le=64)
    voices: Path = Field(Path("~/.local/share/evervox/voices"), description="folder of stored voices")
    max_voices: int = Field(1000, ge=0, le=1_000_000, description="stored voices of one tenant")
    max_voice_bytes: int = Field(1024 * MIB, ge=0, description="bytes of one tenant's stored voices")
    aliases: tuple[str, ...] = Field((), max_length=100, description="further names that `model` may be called by")
    keys_file: Path | None = Field(None, description="lines of tenant:key")
    keys: SecretStr | None = Field(None, description="tenant:key, separated by commas")
    cors_origins: tuple[str, ...] = Field((), max_length=100, description="origins whose pages may use the server")
    log_format: Literal["text", "json"] = "text"


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """`EVERVOX_*` variables that no setting is read from, each with the name that was probably meant."""
    known = [_prefix(kind) + name.upper() for kind in (Settings, ServerSettings) for name in kind.model_fields]
    unknown = [name for name in environment if name.upper().startswith(_prefix(Settings)) and name.upper() not in known]
    return {name: next(iter(get_close_matches(name.upper(), known, 1, 0.8)), None) for name in unknown}


def _prefix(kind: type[_Settings]) -> str:
    return kind.model_config.get("env_prefix") or ""


def _explain(detail: Any) -> str:
    name = ".".join(map(str, detail["loc"])) or "settings"
    if detail["type"] == "extra_forbidden":
        return f"{name}: there is no such setting (value {detail['input']!r})"
    return f"{name}: {detail['msg'][:1].lower()}{detail['msg'][1:]}, not {detail['input']!r}"
