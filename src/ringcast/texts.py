"""Words for people."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """1 member, 2 members; 1 view waits, 2 views wait."""
    return f"{count} {one if count == 1 else many or one + 's'}"
