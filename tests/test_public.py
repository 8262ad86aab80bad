"""The public surface: changing it means changing this list."""

import evervox

PUBLIC = {"__version__"}


def test_public_names() -> None:
    assert set(getattr(evervox, "__all__", ())) == PUBLIC


def test_every_public_name_is_there() -> None:
    assert all(hasattr(evervox, name) for name in PUBLIC)
