"""`evervox serve`: the command line of the server. Light to import: what serves is loaded when it is called."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  read by typer
from typing import Annotated, Any

import typer


def serve(  # noqa: PLR0917  one parameter per option
    model: Annotated[str | None, typer.Option(help="Checkpoint folder; the small voice that ships without one.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one. [8000]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N. [auto]")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16, float64 or int8 (CPU). [auto]")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the worker.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Sequences on the device at once. [16]")] = None,
    max_waiting: Annotated[int | None, typer.Option(help="Requests beyond those before 429. [64]")] = None,
    graphs: Annotated[bool | None, typer.Option(help="Record a GPU's steps at start. [yes]")] = None,
    graph_memory: Annotated[int | None, typer.Option(help="Bytes for recorded steps. [a tenth of the GPU's]")] = None,
    spare: Annotated[bool | None, typer.Option(help="Keep a second process ready for a worker that dies: 160 MiB. [yes]")] = None,
    request_timeout: Annotated[float | None, typer.Option(help="Seconds for one request. [300]")] = None,
    drain_timeout: Annotated[float | None, typer.Option(help="Seconds for open streams after SIGTERM. [30]")] = None,
    voices: Annotated[Path | None, typer.Option(help="Folder of stored voices. [~/.local/share/evervox/voices]")] = None,
    keys_file: Annotated[Path | None, typer.Option(help="File of tenant:key lines; without one no key is asked for.")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="A further name that `model` may be called by; repeatable.")] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="An origin whose pages may use the server; repeatable.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json. [text]")] = None,
) -> None:
    """Serve speech over HTTP: OpenAI's API, voices, metrics and a page to try it on. Settings: EVERVOX_* and EVERVOX_SERVER_*."""
    server = _given(
        host=host, port=port, request_timeout=request_timeout, drain_timeout=drain_timeout, voices=voices, keys_file=keys_file
    )
    server |= _given(spare=spare)
    server |= _given(aliases=alias and tuple(alias), cors_origins=cors_origin and tuple(cors_origin), log_format=log_format)
    engine = _given(device=device, dtype=dtype, threads=threads, max_running=max_running, max_waiting=max_waiting)
    engine |= _given(graphs=graphs, graph_memory=graph_memory)
    from evervox.config import ServerSettings
    from evervox.server.host import run, serve_forever
    from evervox.server.requestlog import set_up_logging

    settings = ServerSettings.read(**server)
    set_up_logging(settings.log_format)
    run(serve_forever(model, settings, **engine))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
