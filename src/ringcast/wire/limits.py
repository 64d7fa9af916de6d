"""What may be in one datagram, view or message: bounds that make decoding cheap whatever comes."""

from __future__ import annotations

from typing import Final

ALLOWANCE_MAX: Final = 2**63 - 1
"""Bytes a sender may be allowed in flight: what a trace column holds."""

WINDOW_SIZE_MAX: Final = 2**32 - 1
"""Bytes of one window."""

COUNTER_MAX: Final = 2**63 - 1
"""Epochs, nonces and views count from 1 to here: what a trace column holds."""

VIEW_MEMBERS_MAX: Final = 512
"""Members of one view, and of one list in a frame. One may take as little as 14 bytes of a datagram
and 300 once decoded."""

CHANGE_BYTES_MAX: Final = 1 << 19
"""Bytes of one frame of a view change, however many datagrams it takes: lists of so many members
with the longest names."""

FLUSHED_MAX: Final = 8
"""Proposals that a member tells of which may have become a view."""

DIGEST_ENTRIES_MAX: Final = 2 * VIEW_MEMBERS_MAX
"""Entries of a digest in a message: of both streams of all members of a view."""

NACK_RANGES_MAX: Final = 128
"""Ranges in one request, and in one datagram. Asking for more at once is our bug."""

MESSAGES_MAX: Final = 8192
"""Messages in one datagram, over all its runs. Messages may be empty, so the datagram's length
alone would not bound the lists that its receiver builds."""

FRAMES_MAX: Final = 128
"""Frames in one datagram. Each costs a few hundred bytes once decoded, however short it is."""

IDENTITIES_MAX: Final = 4 * VIEW_MEMBERS_MAX
"""Decoded heads of datagrams kept: of each member those to all and to us, and of some who have
gone. More may talk to us; the oldest is then decoded again."""
