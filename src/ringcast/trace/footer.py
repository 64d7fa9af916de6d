"""What a segment's footer tells: whose rows it has, which, and which messages are in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import xxhash

from ringcast.trace.held import Holdings

THE_RUN = ("", 0)
"""Under this name and incarnation stand the rows that are of no member."""
FOOTER_ERRORS = (ValueError, TypeError, LookupError, RecursionError)
"""What reading a footer that others wrote may raise."""

_NAME = re.compile(r"(.+-[0-9a-f]{16}-[0-9a-f]{16})-([0-9]+)(?:-([0-9]+))?\.parquet")
_INFO_KEY = b"ringcast"
_HELD_KEY = b"ringcast.held"
_BEFORE_KEY = b"ringcast.before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Whose rows a file has: the same for all segments of one member."""

    run_id: str
    node: str
    inc: int
    level: str = "deliveries"
    host: str = ""
    boot_id: str = ""
    payloads: bool = False
    """It is an archive: the messages themselves are kept."""
    group: str = ""
    """Empty: written before this was recorded, or by nobody's group."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the rules that judge the rows depend on: how the group purges ("purge"), the most
    messages that a send window may have ("capacity"), how many messages have one hash
    ("block_messages"), and as what else the member was configured. Empty: nobody knows."""

    @property
    def file_stem(self) -> str:
        """A file name that is unique for the member and safe whatever it is called."""
        # Spark and Hadoop take a file whose name begins with an underscore for hidden.
        name = re.sub(r"[^A-Za-z0-9_]", "_", self.node)[:32].lstrip("_") or "run"
        identity = xxhash.xxh3_64_hexdigest(json.dumps([self.run_id, self.node]).encode())
        return f"{name}-{identity}-{self.inc:016x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo(Recording):
    """The footer of a segment."""

    schema: int
    rows: int
    first_idx: int
    last_idx: int
    lost: int
    """Rows this member's recorder had lost when the segment was closed."""
    is_last: bool
    """The member stopped cleanly and this is its end."""
    facts: dict[str, Any] | None = None
    """Of a simulation, beside the rows of the run itself."""
    visible_at: float | None = None
    """Of a segment that others were merged into: when the newest of them got its name, in seconds
    since the epoch."""

    def is_merged_from(self, other: SegmentInfo) -> bool:
        """Whether the rows of the other one, of the same member, are among these."""
        return self.visible_at is not None and (
            self.first_idx <= other.first_idx <= other.last_idx <= self.last_idx
        )

    @property
    def recording(self) -> Recording:
        """Whose it is."""
        return Recording(**{item.name: getattr(self, item.name) for item in fields(Recording)})


class NamedRows(NamedTuple):
    """What a segment's name tells: whose rows it has, from which on; of a merged one to which."""

    stem: str
    first: int
    last: int | None

    def is_within(self, other: NamedRows) -> bool:
        return self.stem == other.stem and other.first <= self.first <= (other.last or -1)

    @classmethod
    def of(cls, name: str) -> NamedRows | None:
        """None: no recorder gives such a name."""
        found = _NAME.fullmatch(name)
        return found and cls(found[1], int(found[2]), None if found[3] is None else int(found[3]))


class Before(NamedTuple):
    """The segment that a member's archive wrote before this one."""

    name: str
    holdings: Holdings


class Footer(NamedTuple):
    """All that stands there beside what Parquet needs."""

    info: SegmentInfo
    holdings: Holdings
    """The messages in an archive's segment; in others there are none."""
    before: Before | None

    def to_metadata(self) -> dict[bytes, bytes]:
        values: dict[bytes, object] = {_INFO_KEY: asdict(self.info)}
        if self.info.payloads:
            values[_HELD_KEY] = self.holdings.to_values()
            if self.before is not None:
                values[_BEFORE_KEY] = [self.before.name, self.before.holdings.to_values()]
        return {key: json.dumps(value).encode() for key, value in values.items()}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes]) -> Footer:
        """What it says beyond what we know is ignored. May raise FOOTER_ERRORS."""
        info = json.loads(metadata[_INFO_KEY])
        known = {item.name: info[item.name] for item in fields(SegmentInfo) if item.name in info}
        held = Holdings.from_values(json.loads(metadata.get(_HELD_KEY, b"[]")))
        before = None
        if _BEFORE_KEY in metadata:
            name, values = json.loads(metadata[_BEFORE_KEY])
            before = Before(name, Holdings.from_values(values))
        return cls(SegmentInfo(**known), held, before)
