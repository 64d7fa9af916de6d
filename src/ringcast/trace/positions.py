"""Where a reader of an archive is: a digest, and the gaps it passed over on its last step.

As JSON it is an object with one number for each origin, {"web-1#17/fifo": 4711, …}, sorted, so that
equal positions have equal texts. Gaps stand beside them under "gaps" and only in the position that
ends the step: with them a step means the same messages for ever, whatever files appear later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringcast.errors import UsageError
from ringcast.model import SEQNO_MAX
from ringcast.trace.held import Range, origin_text, parse_origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringcast.trace.rows import OriginKey

_GAPS = "gaps"


@dataclass(frozen=True, slots=True)
class Position:
    """Behind these messages."""

    digest: dict[OriginKey, int] = field(default_factory=dict)
    gaps: dict[OriginKey, list[Range]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        entries = {origin_text(origin): seqno for origin, seqno in self.digest.items()}
        position: dict[str, object] = dict(sorted(entries.items()))
        if self.gaps:
            gaps = {origin_text(origin): list(map(list, gap)) for origin, gap in self.gaps.items()}
            position[_GAPS] = dict(sorted(gaps.items()))
        return position

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        """UsageError: this is not a position in an archive."""
        try:
            gaps = values.get(_GAPS, {})
            return cls(
                {parse_origin(key): _seqno(values[key]) for key in values if key != _GAPS},
                {
                    parse_origin(key): [Range(_seqno(first), _seqno(last)) for first, last in some]
                    for key, some in dict(gaps).items()
                },
            )
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"not a position in an archive: {str(values)[:100]}") from error


def _seqno(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= SEQNO_MAX:
        raise ValueError(f"{value!r} is not a seqno")
    return value
