"""A run judged from the summaries of what its members recorded, each for itself.

Views, and what was sent and delivered in them, are judged by the rules that judge simulations, over
condensed rows. A verdict is *violated* only on positive evidence. Where rows of a member are
missing (lost by its recorder, a file gone or torn) the rest is judged and called *incomplete*. The
trace of a member that a view left behind is a prefix: what hangs on its missing end is *unknown*,
nobody's fault. What such traces can never show is *undecidable*.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from ringcast.rules.delivery import at_most_once, in_its_view, in_order, prefix_of_the_dead
from ringcast.rules.sync import delivered_before_purged, once_across_syncs
from ringcast.rules.table import BY_PROTOCOL, ORDER, VIEWS, verdicts
from ringcast.rules.total import one_order
from ringcast.rules.unicast import in_turn
from ringcast.rules.views import uniform_in_all, view_order
from ringcast.spark import report
from ringcast.spark.contents import compare_content, minus, missing_hashes, ranges
from ringcast.spark.judged import judge_details
from ringcast.spark.order import compare_orders
from ringcast.spark.reach import judge_reach
from ringcast.spark.reading import WITNESS_ROWS_MAX, Look, Workers, at_idx, at_seqnos, fetch_rows
from ringcast.spark.report import HALVES, RECORDED, Verdict, Violation, verdict_id
from ringcast.spark.summary import CUT, ROLES, MemberTrace
from ringcast.trace.files import facts_from_values
from ringcast.trace.rows import CRASH, DELIVER, OPEN, SEND, STOP, Facts, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringcast.rules.findings import Rule
    from ringcast.spark.recorded_run import RecordedRun
    from ringcast.trace.rows import MemberKey, OriginKey, ViewKey

OF_TWO = (in_turn, delivered_before_purged, once_across_syncs)
"""Of messages to one member, judged from what both sides condense."""


def judge_recorded(spark: Workers, run: RecordedRun) -> list[Verdict]:
    """What every rule says of the run."""
    return _Judge(spark, run).verdicts()


class _Judge:
    """Judges each rule from the merged summaries, then fetches the rows that show it."""

    def __init__(self, spark: Workers, run: RecordedRun) -> None:
        self._spark = spark
        self._run = run
        self._names = run.names
        self._verdicts = {name: Verdict(name, unjudged=HALVES.get(name, "")) for name in RECORDED}
        self._shown: list[Violation] = []
        self._looks: list[Look] = []

    def verdicts(self) -> list[Verdict]:
        self._judge_integrity()
        self._judge_order()
        self._judge_ends()
        self._judge_sends()
        self._judge_views()
        self._judge_one_order()
        self._judge_content()
        self._judge_reach()
        self._judge_details()
        for shown, row in fetch_rows(self._spark, self._looks):
            self._shown[shown].rows.append(row)
        for violation in self._shown:
            rows = sorted(set(violation.rows), key=attrgetter("node", "inc", "idx"))
            violation.rows = rows[:WITNESS_ROWS_MAX]
        cut = sum(trace.summary.cut for trace in self._run.members.values())
        # Where messages are total there need not be others.
        is_ordered = any(trace.summary.orders for trace in self._run.members.values())
        for name in self._verdicts if is_ordered else report.IF_ANY:
            self._verdicts[name].is_optional = True
        for verdict in self._verdicts.values():
            if verdict.is_beyond_level:
                continue
            verdict.incomplete += self._run.defects
            if verdict.id in report.ALONE:
                verdict.without = self._run.absent
            else:
                verdict.incomplete += self._run.absent
            if cut:
                verdict.incomplete.append(f"{cut} breaks in the order were not looked into")
            is_idle = not verdict.premises and not verdict.unknown and not verdict.undecidable
            if is_idle and (verdict.id not in report.NEED_FULL or verdict.id in report.IF_ANY):
                verdict.inconclusive.append("there was nothing to judge")
        return [*self._verdicts.values(), *_not_judged(self._run)]

    # Rules

    def _judge_order(self) -> None:
        """N1: what is new is the next seqno. What has been delivered before is for G2 to judge."""
        members = self._run.members.values()
        self._take([at_most_once, view_order], (row for trace in members for row in trace.rows))
        self._take([in_order], (row for trace in members for row in _bridged(trace)))
        for name in ("G2 N2", "N1"):
            self._verdicts[name].premises = self._run.count(DELIVER)

    def _judge_ends(self) -> None:
        """G3, of members that say that they stop: nothing follows."""
        for member, trace in self._run.members.items():
            stop = next((row for row in trace.rows if row.event == STOP), None)
            if stop is None:
                continue
            self._verdicts["G3"].premises += 1
            last_idx = trace.states[-1].info.last_idx
            if last_idx > stop.idx:
                more = f"{last_idx - stop.idx} rows more"
                text = f"{self._name(member)} has stopped, then come {more}"
                self._violate("G3", text, at_idx(trace, stop.idx), at_idx(trace, last_idx))

    def _judge_sends(self) -> None:
        """N3, of which the traces show that each send takes the next seqno."""
        self._verdicts["N3"].premises = self._run.count(SEND)
        for _, trace, track, runs in self._run.runs("sent"):
            if trace.level == "full" and trace.is_whole:
                continue  # its rows tell more: see `judge_details`
            due, last_idx = 1, -1
            for run in runs:
                is_lost = run.seqno > due and run.idx in trace.after_holes
                if run.seqno2 < run.seqno or (run.seqno != due and not is_lost):
                    self._violate(
                        "N3",
                        f"{self._names.of_origin(track.origin)} sends {run.seqno}, due was {due}",
                        *(at_idx(trace, last_idx), at_idx(trace, run.idx)),
                    )
                due, last_idx = run.seqno2 + 1, run.idx
        if any(trace.level != "full" for trace in self._run.members.values()):
            blocked = 'that sends were blocked is recorded by record_level="full" only'
            self._verdicts["N3"].unjudged = blocked

    def _judge_views(self) -> None:
        """What happens in each view, as far as no row of a member is missing. The dead are those
        whom views left behind and whose traces have no end."""
        members = self._run.members
        deaths = [Row(CRASH, *member, 1 << 62) for member in sorted(self._run.prefixes)]
        rows = [row for trace in members.values() for row in trace.sure_rows]
        rules = [
            each for each in (*VIEWS, uniform_in_all, prefix_of_the_dead) if each != view_order
        ]
        self._take(rules, [*rows, *deaths])
        less = [trace for trace in members.values() if trace.level != "full"]
        self._take([in_its_view], (row for trace in less for row in trace.sure_rows))
        if less:
            asked = 'whom members ask for repair is recorded by record_level="full" only'
            self._verdicts["N8"].unjudged = asked
        purges = {trace.purge for trace in members.values()}
        if "" in purges or len(purges) > 1:
            differ = f"members name different purge rules: {', '.join(sorted(purges))}"
            why = "traces do not say how members purge" if "" in purges else differ
            told = f"plain messages of the departed are not compared: {why}"
            self._verdicts["VS5"].unjudged = told

    def _judge_one_order(self) -> None:
        """O1 to O9, of total messages. Who took what at which position is judged from rows only
        where two members differ."""
        members = self._run.members
        rows = [row for trace in members.values() for row in trace.sure_rows]
        known = {_key(member) for member, trace in members.items() if trace.is_whole}
        lacking = frozenset(set(map(_key, self._run.mentioned)) - known)
        self._take([each for each in ORDER if each.id in report.OF_ORDER], rows, lacking)
        found = compare_orders(self._spark, self._run)
        self._verdicts[one_order.id].premises += found.alike
        self._take([one_order], found.rows)
        if found.left_out:
            left_out = f"{found.left_out} buckets of the order not compared"
            self._verdicts[one_order.id].inconclusive.append(left_out)

    def _judge_integrity(self) -> None:
        """G1: what is delivered, less what was sent, is nothing."""
        verdict = self._verdicts["G1"]
        verdict.premises = self._run.count(DELIVER)
        sent = {track.origin: ranges(runs) for _, _, track, runs in self._run.runs("sent")}
        for member, trace, track, runs in self._run.runs("delivered"):
            sender = track.peer, track.peer_inc
            known = sent.get(track.origin, [])
            highest = max((last for _, last in known), default=0)
            for first, last in minus(ranges(runs), known):
                if sender in self._run.prefixes and first > highest:
                    verdict.unknown.add(self._name(sender))
                elif not self._may_lack(sender, first > highest):
                    looks = [at_seqnos(trace, DELIVER, track.origin, first, last)]
                    source = self._run.members.get(sender)
                    if source is not None and highest:
                        looks.append(at_seqnos(source, SEND, track.origin, highest, highest))
                    self._violate(
                        "G1",
                        f"{self._name(member)} delivers {first}..{last} of "
                        f"{self._names.of_origin(track.origin)}, which was not sent",
                        *looks,
                    )

        self._judge_fragments()

    def _judge_fragments(self) -> None:
        """What is a fragment for one is a fragment for all: where two have delivered the same of an
        origin in one view, they have as many whole messages of it."""
        most: dict[tuple[ViewKey, OriginKey, int, int], tuple[int, Row]] = {}
        for stay, origin, span in self._run.history.delivered():
            if span.torn is not None:
                continue
            same = stay.key, origin, span.first, span.last
            count, row = most.setdefault(same, (span.size, span.row))
            if count == span.size:
                continue
            delivers = f"{self._name(row.key)} delivers {count} messages"
            text = f"{self._name(span.row.key)} {span.size}: a large one is not whole"
            where = f"{self._names.of_origin(origin)} {span.first}..{span.last}"
            shown = self._witnesses((row, span.row))
            self._violate("G1", f"in {where} {delivers}, {text}", *shown)

    def _may_lack(self, sender: MemberKey, is_at_end: bool) -> bool:
        """May the send be in rows that are known to be missing? Then it is called incomplete."""
        trace = self._run.members.get(sender)
        if trace is None:
            return sender in self._run.mentioned
        return bool(trace.holes or trace.lost) or (is_at_end and not trace.is_clean_stop)

    def _judge_content(self) -> None:
        """All have the same blocks."""
        verdict = self._verdicts["content"]
        found = compare_content(self._spark, self._run)
        verdict.premises, verdict.share = found.blocks, found.share
        verdict.unknown |= set(map(self._name, found.unknown))
        if found.left_out:
            verdict.inconclusive.append(f"{found.left_out} spans not compared")
        for text, rows in found.differing:
            self._violate("content", text)
            if len(verdict.violations) <= report.VIOLATIONS_SHOWN_MAX:
                verdict.violations[-1].rows += rows
        for member, trace in self._run.members.items():
            for track, blocks in missing_hashes(trace).items():
                of = self._names.of_origin(
                    (*member, track.stream) if track.is_sent else track.origin
                )
                some = ", ".join(map(str, blocks[:3])) + ", …" * (len(blocks) > 3)
                lacks = (
                    f"{self._name(member)} has not written down the hash of block {some} of {of}"
                )
                verdict.incomplete.append(lacks)

    def _judge_reach(self) -> None:
        """N5: of what a sender has purged, each member of its view has everything."""
        verdict = self._verdicts["N5"]
        found = judge_reach(self._run)
        verdict.premises = found.judged
        verdict.unknown |= set(map(self._name, found.unknown))
        for origin, receiver, through, mark in found.lacking:
            source, trace = self._run.members[origin[:2]], self._run.members[receiver]
            self._violate(
                "N5",
                f"{self._name(receiver)} has delivered {self._names.of_origin(origin)} through "
                f"{through}, which had purged through {mark.through} with "
                f"{self._name(receiver)} in its view",
                at_idx(source, mark.idx),
                at_seqnos(trace, DELIVER, origin, through, through),
                *(
                    at_idx(trace, row.idx)
                    for row in trace.rows
                    if row.event == OPEN and row.origin == origin
                ),
            )
        verdict.reaches = found.shares
        if found.shares and not found.judged:
            verdict.undecidable.append("what had not been purged may have been under way")

    def _judge_details(self) -> None:
        """What frames and windows show, of the members that recorded them."""
        members = self._run.members
        is_full = {member: trace.level == "full" for member, trace in members.items()}
        if not all(is_full.values()):
            silent = [self._name(member) for member in members if not is_full[member]]
            for name in report.NEED_FULL:
                verdict = self._verdicts[name]
                verdict.is_beyond_level = True
                verdict.inconclusive.append(
                    f'needs record_level="full", which {", ".join(silent)} did not use'
                )
        capacity = {
            _key(member): trace.capacity for member, trace in members.items() if trace.capacity
        }
        full = [trace for member, trace in members.items() if is_full[member]]
        verdicts, rows = judge_details(self._spark, full, capacity)
        self._judge_pairs(rows)
        for found in verdicts:
            verdict = self._verdicts[found.id]
            verdict.premises += found.premises
            verdict.violation_count += found.violation_count
            room = report.VIOLATIONS_SHOWN_MAX - len(verdict.violations)
            shown = found.violations[:room]
            verdict.violations += [
                Violation(self._names.shorten(text), list(rows)) for text, rows in shown
            ]
            if found.undecidable is not None:
                verdict.inconclusive.append(found.undecidable)

    def _judge_pairs(self, rows: list[Row]) -> None:
        """What two members have to agree on, of messages from one to the other."""
        members = self._run.members
        full = {each for each, trace in members.items() if trace.level == "full" and trace.is_whole}
        whole = set(map(_key, full))  # what is not among their rows has not happened
        whole -= {row.member for row in rows if row.event == CUT}
        unrecorded = frozenset({row.peer_member for row in rows} - whole)
        self._take([*OF_TWO, at_most_once], rows, unrecorded)

    def _take(
        self, rules: list[Rule], rows: Iterable[Row], unrecorded: frozenset[str] = frozenset()
    ) -> None:
        """What rules say of condensed rows. Where a run shows it, the rows at its ends do."""
        purges = {trace.purge for trace in self._run.members.values()}
        facts = Facts(purge=purges.pop() if len(purges) == 1 else "")
        for found in verdicts(rules, rows, facts, unrecorded):
            name = verdict_id(found.id)
            verdict = self._verdicts[name]
            verdict.premises += found.premises
            verdict.violation_count += found.violation_count - len(found.violations)
            for text, shown in found.violations:
                self._violate(name, self._names.shorten(text), *self._witnesses(shown))
            why = found.undecidable
            if why is not None and why != HALVES.get(name):
                self._note_unknown(verdict, why)

    def _witnesses(self, rows: Iterable[Row]) -> Iterator[Look]:
        for row in rows:
            trace = self._run.members.get((row.node, row.inc))
            if trace is None:
                continue
            yield at_idx(trace, row.idx)
            if row.event in ROLES:
                for seqno in {row.seqno, row.seqno2}:
                    yield at_seqnos(trace, row.event, row.origin, seqno, seqno)

    def _note_unknown(self, verdict: Verdict, why: str) -> None:
        """What hangs on the ends of some traces: of those that are named, or of any."""
        killed = self._run.prefixes
        named = {member for member in killed if f"{member[0]}#{member[1]}" in why}
        verdict.unknown |= set(map(self._name, named or killed))
        if not (killed or self._run.defects or self._run.absent):
            verdict.inconclusive.append(self._names.shorten(why))

    def _name(self, member: MemberKey) -> str:
        return self._names.of(member)

    def _violate(self, name: str, text: str, *looks: Look) -> None:
        verdict = self._verdicts[name]
        verdict.violation_count += 1
        if len(verdict.violations) < report.VIOLATIONS_SHOWN_MAX:
            shown = Violation(text)
            verdict.violations.append(shown)
            self._shown.append(shown)
            number = len(self._shown) - 1
            self._looks += [(trace, want._replace(finding=number)) for trace, want in looks]


def _not_judged(run: RecordedRun) -> list[Verdict]:
    """What summaries say nothing of: of a simulation because rows are missing."""
    if run.facts is None:
        reasons = report.UNDECIDABLE_IF_RECORDED
        return [Verdict(name, undecidable=[why]) for name, why in reasons.items()]
    names = [verdict_id(rule.id) for rule in BY_PROTOCOL[facts_from_values(run.facts).protocol]]
    return [Verdict(name, incomplete=run.defects) for name in names if name not in RECORDED]


def _bridged(trace: MemberTrace) -> Iterator[Row]:
    """Where rows are missing, what follows may be behind a gap: as if a window had opened there."""
    due: defaultdict[OriginKey, int] = defaultdict(lambda: 1)
    for row in trace.rows:
        if row.event == DELIVER and row.idx in trace.after_holes and row.seqno > due[row.origin]:
            yield row._replace(event=OPEN, idx=row.idx - 1, seqno=row.seqno - 1)
        if row.event in (DELIVER, OPEN):
            last = row.seqno if row.event == OPEN else row.seqno2
            due[row.origin] = max(due[row.origin], last + 1)
            yield row


def _key(member: MemberKey) -> str:
    """As views list their members."""
    return f"{member[0]}#{member[1]}"
