"""How long view changes may take, on a network that works.

The numbers are those of docs/properties.md, and are taken from nowhere else: a rule takes no bound
from the code that it judges.
"""

from __future__ import annotations

from ringcast.trace.rows import Facts

SECOND_NS = 1_000_000_000
PATIENCE_NS = SECOND_NS // 2
"""How long somebody who does not answer is waited for, p."""
HELLO_NS = SECOND_NS
"""How often parts say Hello, h."""
GATHER_NS = SECOND_NS // 20
"""How long whoever is met waits for others, g."""
BACK_OFF_NS = 16 * SECOND_NS
"""How long parts wait at the most before they come together again after a loss, b."""
STATE_PATIENCE_NS = 10 * SECOND_NS
"""How long a provider that gives no sign is waited for at first, K."""
DUTY_NS = 10 * SECOND_NS
"""In so long a time changes that nobody needs take a tenth at the most."""
MINUTE_NS = 60 * SECOND_NS
BACK_OFFS_PER_MINUTE = 7
"""How often two parts come together in a minute: they wait for 1, 2, 4, 8, 16 and 16 seconds."""
SYNC_TICKS_MAX = 10
"""For so many ticks a receiver asks where a stream stands, then it gives up."""
MARKS_MAX = 512
"""Of so many members marks are kept, those that have gone among them."""
STRANGER_NS = 2 * SECOND_NS
"""For so long what a member that is not in the view has sent waits for a view with it."""


def change_ns(facts: Facts) -> int:
    """A change among members that live: five delays, and two to fetch what is lacking."""
    return 7 * facts.delta_ns


def death_ns(facts: Facts) -> int:
    """What the death of a member costs a change."""
    return PATIENCE_NS + change_ns(facts)


def frozen_ns(facts: Facts, deaths: int = 0) -> int:
    """The longest that a member is frozen, if so many die meanwhile."""
    return (2 + deaths) * death_ns(facts)


def missed_ns(facts: Facts) -> int:
    """Until the dead are suspected: twice, because the first view may be what makes some of them
    watched."""
    return 2 * (facts.suspect_ns + facts.heartbeat_ns + 2 * facts.verify_ns)


def one_view_ns(facts: Facts) -> int:
    """Until all that live and hear each other are in one view, whatever was the case before: the
    dead are left out, then all parts come together in one change."""
    meeting = HELLO_NS + GATHER_NS + BACK_OFF_NS + change_ns(facts)
    return missed_ns(facts) + frozen_ns(facts) + meeting


def join_ns(facts: Facts) -> int:
    """Until whoever starts is in a view: its group's, or one of its own."""
    return facts.discovery_ns + one_view_ns(facts)


def leave_ns(facts: Facts) -> int:
    """Until whoever leaves is out, whatever happens."""
    return facts.leave_ns + 2 * facts.delta_ns


def leave_soon_ns(facts: Facts) -> int:
    """The same on a network that works: what has been sent has its seqnos, then one change follows,
    perhaps behind another."""
    most = max(facts.capacity.values(), default=1)
    drained = max(facts.drain_bound_ns(most), facts.drain_bound_ns(most, is_gated=True))
    return min(leave_ns(facts), drained + frozen_ns(facts) + change_ns(facts))


def state_ns(facts: Facts, waited_ns: int = 0) -> int:
    """How long after the end of the faults whoever takes the state may still wait for it, if it has
    waited for so long by then: until there is one view; until its patience with a silent provider
    ends, which doubles, and is never more than twice what it has waited; then once for each member
    that is asked in turn."""
    patience = max(STATE_PATIENCE_NS, 2 * waited_ns)
    turns = facts.nodes * (PATIENCE_NS + change_ns(facts))
    return one_view_ns(facts) + patience + turns + facts.state_ns


def merges_per_minute(facts: Facts) -> int:
    """In how many merges a member may take part in a minute, whatever befalls the network."""
    return BACK_OFFS_PER_MINUTE * (facts.nodes - 1)


def views_per_minute(facts: Facts) -> int:
    """How many views it may install then. Everybody has its first. Parting and coming together are
    two; and a link that comes and goes must be down for long enough to be noticed, and up for as
    long."""
    returns = 30 * SECOND_NS // max(1, facts.suspect_ns + facts.verify_ns)
    return 1 + 2 * (merges_per_minute(facts) + returns * (facts.nodes - 1))
