"""What may be in one datagram, view or message: bounds that make decoding cheap whatever comes."""

from __future__ import annotations

from typing import Final

ALLOWANCE_MAX: Final = 2**63 - 1
"""Bytes a sender may be allowed in flight: what a trace column holds."""

COUNTER_MAX: Final = 2**63 - 1
"""Epochs, nonces and views count from 1 to here: what a trace column holds."""

VIEW_MEMBERS_MAX: Final = 128
"""Members of one view. One may take as little as 16 bytes of a datagram and, with its part of a
digest, 800 once decoded. So few also fit one datagram, however long their names are."""

CHANGE_MEMBERS_MAX: Final = 512
"""Members that one frame of a view change lists, and the views that they come from: at least one
member is in each. What fits no datagram is our bug: with the longest names 460 members do."""

FLUSHED_MAX: Final = 8
"""Proposals that a member tells of which may have become a view."""

DIGEST_ENTRIES_MAX: Final = 1024
"""Entries of a digest in a message: of all members of a view, and of many that have departed."""

NACK_RANGES_MAX: Final = 128
"""Ranges in one request, and in one datagram. Asking for more at once is our bug."""

MESSAGES_MAX: Final = 8192
"""Messages in one datagram, over all its runs. Messages may be empty, so the datagram's length
alone would not bound the lists that its receiver builds."""

FRAMES_MAX: Final = 128
"""Frames in one datagram. Each costs a few hundred bytes once decoded, however short it is."""

IDENTITIES_MAX: Final = 1024
"""Decoded senders kept. More may talk to us; the oldest is then decoded again."""
