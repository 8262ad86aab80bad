"""What the core can say went wrong: a request that it refuses, or a book that does not add up."""

from __future__ import annotations


class Refused(ValueError):
    """A request that can never be served as asked. `limit` names the rule or setting that it breaks."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(f"{limit}: {message}")
        self.limit = limit


class BrokenBooks(RuntimeError):
    """An invariant of the core does not hold: a defect, never a load condition. The message prints the object."""


def require(claims: dict[str, bool], book: object) -> None:
    """Raise `BrokenBooks` with the first claim that does not hold, and the book itself."""
    for claim, holds in claims.items():
        if not holds:
            raise BrokenBooks(f"not so: {claim}: {book!r}")
