"""Make a failing run smaller while it still fails, by delta debugging.

Fault classes go first, then what is not plain about the members, incidents, nodes, messages, and
last the faults of single packets. A smaller run counts as the same failure if it violates the same
rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ringcast.errors import UsageError
from ringcast.sim.cluster import NodeFactory
from ringcast.sim.options import DEFAULTS, Options
from ringcast.sim.runner import Result, run

T = TypeVar("T")

RUNS_MAX = 500
PLAIN = (
    *("hold_ms", "poll_ms", "take_limit", "stopped", "repair_to_all", "sizes", "delay"),
    *("ack_threshold", "spells", "expiry_ms", "max_retransmit_ms", "hints"),
    *("told", "start_ms"),
)
"""Options on which, as they are by default, nothing depends."""


class Shrinker:
    """Counts its runs and stops trying when there have been enough."""

    def __init__(
        self,
        first: Result,
        node_factory: NodeFactory | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        if not first.failures:
            raise UsageError(f"seed {first.options.seed} does not fail: there is nothing to shrink")
        self.rule = first.failures[0].rule
        self.best = first
        self.runs = 0
        self._node_factory = node_factory
        self._progress = progress

    def shrink(self) -> Result:
        """The smallest run found that still fails in the same way."""
        before = None
        while self.best.options != before and self.runs < RUNS_MAX:
            before = self.best.options
            self._drop_classes()
            self._make_plain()
            self._drop_incidents()
            self._drop_nodes()
            self._drop_messages()
            self._drop_packet_faults()
            self._progress(f"{self.runs} runs: {_size(self.best)}")
        return self.best

    def _fails(self, options: Options) -> bool:
        """Whether this still fails; if so it is the best so far."""
        if self.runs >= RUNS_MAX:
            return False
        self.runs += 1
        result = run(options, self._node_factory)
        if all(failure.rule != self.rule for failure in result.failures):
            return False
        self.best = result
        return True

    def _drop_classes(self) -> None:
        for fault in self.best.options.faults:
            self._fails(self.best.options.without(fault))

    def _make_plain(self) -> None:
        for name in PLAIN:
            value = DEFAULTS[name]
            if getattr(self.best.options, name) != value:
                self._fails(replace(self.best.options, **{name: value}))

    def _drop_incidents(self) -> None:
        options = self.best.options
        self._fewest(options.incidents, lambda kept: replace(options, incidents=kept))

    def _drop_nodes(self) -> None:
        options = self.best.options
        for nodes in range(1, options.nodes):
            if self._fails(options.with_nodes(nodes)):
                break

    def _drop_messages(self) -> None:
        for sender in self.best.options.senders:
            if self._fails(replace(self.best.options, senders=(sender,))):
                break
        options = self.best.options
        self._fewest(options.pairs, lambda kept: replace(options, pairs=kept))
        for name in ("messages", "burst", "late_messages"):
            while getattr(self.best.options, name) > 1:
                half = getattr(self.best.options, name) // 2
                if not self._fails(replace(self.best.options, **{name: half})):
                    break

    def _drop_packet_faults(self) -> None:
        """From drawing packet faults on the way to a list of those that matter."""
        names = self.best.fault_names
        listed = replace(self.best.options, only=names)
        if names and self._fails(listed):
            self._fewest(names, lambda kept: replace(listed, only=kept))

    def _fewest(self, items: Sequence[T], build: Callable[[tuple[T, ...]], Options]) -> None:
        """Leave out halves, then quarters, … down to single items, as long as it still fails."""
        kept = tuple(items)
        size = len(kept)
        while size > 0:
            # The last one first: leaving one out moves none that is still to come.
            for start in reversed(range(0, len(kept), size)):
                fewer = kept[:start] + kept[start + size :]
                if len(fewer) < len(kept) and self._fails(build(fewer)):
                    kept = fewer
            size //= 2


def _size(result: Result) -> str:
    options = result.options
    senders = len(options.senders) or len(options.pairs)
    faults = len(options.incidents) + len(result.fault_names)
    return f"{options.nodes} nodes, {senders} × {options.messages} messages, {faults} faults"
