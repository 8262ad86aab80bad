"""Which room may import what, read from the source: the table of docs/architecture.md, and that torch stays in the worker."""

import ast
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "evervox"
CLOCKS_AND_IO = [
    "time",
    "datetime",
    "random",
    "secrets",
    "logging",
    "os",
    "io",
    "sys",
    "socket",
    "threading",
    "asyncio",
    "subprocess",
    "pathlib",
    "uuid",
]
MODEL_FACTS = tuple(f"evervox.models.voxcpm.{name}" for name in ("config", "hub", "describe"))
"""Of the models, what the torch-free rooms read: numbers of a checkpoint, and where it is."""


@dataclass(frozen=True)
class Room:
    """`libraries` None: any but those in `never`. `ours`: prefixes of evervox modules, besides the room itself and `errors`."""

    libraries: tuple[str, ...] | None
    ours: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


ARITHMETIC = ("evervox.models", "evervox.layers", "evervox.kernels")
ROOMS = {
    "core": Room((), never=tuple(CLOCKS_AND_IO)),
    "conditioning": Room(("numpy", "tokenizers", "av", "sentencex"), ("evervox.request", "evervox.core.keys", *MODEL_FACTS)),
    "models": Room(("torch", "numpy", "safetensors", "huggingface_hub"), ARITHMETIC),
    "layers": Room(("torch",), ARITHMETIC),
    "kernels": Room(("torch", "triton"), ("evervox.layers",)),
    "runner": Room(
        ("torch", "numpy", "safetensors", "psutil"),
        (*ARITHMETIC, "evervox.core.plan", "evervox.request", "evervox.conditioning.layout", "evervox.config", "evervox.ledger"),
    ),
    "audio": Room(("numpy", "av"), ("evervox.request",)),
    "engine": Room(None, ("evervox",), never=("torch", "triton", "fastapi", "starlette", "uvicorn", "evervox.server")),
    "server": Room(
        None,
        ("evervox.engine", "evervox.audio", "evervox.request", "evervox.config", "evervox.ledger", *MODEL_FACTS),
        never=("torch", "triton", "zmq", "transformers"),
    ),
    "cli": Room(
        None,
        (
            "evervox.engine",
            "evervox.audio",
            "evervox.request",
            "evervox.config",
            "evervox.server",
            *MODEL_FACTS,
        ),
        never=("torch", "triton", "zmq", "transformers"),
    ),
    "errors": Room(()),
    "request": Room(("numpy",)),
    "config": Room(("pydantic", "pydantic_settings", "typing_extensions")),
    "ledger": Room(()),
}
TORCH_FREE = ("evervox", "evervox.server.app", "evervox.cli", "evervox.engine.client", "evervox.conditioning.prepare")


def imports(path: Path, package: str) -> set[str]:
    """Every module that a file imports anywhere, with `from x import y` as `x.y`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            found |= {f"{base}.{name.name}" for name in node.names}
    return found


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def is_allowed(module: str, name: str, room: Room) -> bool:
    if any(within(module, banned) for banned in room.never):
        return False
    if within(module, "evervox"):
        return any(within(module, prefix) for prefix in (f"evervox.{name}", "evervox.errors", "evervox.__version__", *room.ours))
    top = module.split(".", maxsplit=1)[0]
    return top in sys.stdlib_module_names or room.libraries is None or top in room.libraries


def files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem in ROOMS)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    relative = path.relative_to(SOURCE)
    name = relative.parts[0].removesuffix(".py")
    package = ".".join(("evervox", *relative.parts[:-1]))
    breaches = sorted(module for module in imports(path, package) if not is_allowed(module, name, ROOMS[name]))
    assert not breaches, f"{relative} may not import {', '.join(breaches)}"


def test_every_folder_is_a_room() -> None:
    folders = {path.parent.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py") if path.parent != SOURCE}
    assert folders <= set(ROOMS)


@pytest.mark.parametrize(
    ("module", "name", "allowed"),
    [
        ("torch.nn", "core", False),
        ("time.monotonic", "core", False),
        ("dataclasses.dataclass", "core", True),
        ("evervox.core.plan.Span", "core", True),
        ("evervox.runner.runner", "core", False),
        ("triton", "layers", False),
        ("evervox.request.Sampling", "models", False),
        ("torch", "server", False),
        ("evervox.server.app", "engine", False),
        ("evervox.core.blocks", "runner", False),
        ("evervox.models.voxcpm.weights.load", "conditioning", False),
    ],
)
def test_the_rule_itself(module: str, name: str, allowed: bool) -> None:
    assert is_allowed(module, name, ROOMS[name]) is allowed


@pytest.mark.parametrize("module", TORCH_FREE)
def test_only_the_worker_loads_torch(module: str) -> None:
    if not (SOURCE.parent / (module.replace(".", "/") + ".py")).exists() and module != "evervox":
        pytest.skip(f"{module} is not written yet")
    code = f"import {module}, sys; print([m for m in ('torch', 'triton', 'transformers') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"
