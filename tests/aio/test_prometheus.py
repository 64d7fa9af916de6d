"""Figures for Prometheus: each once, and whatever a name is made of."""

from __future__ import annotations

from ringcast.aio.prometheus import METRICS, exposition

NAMES = {"name": 'a"b\\c', "address": "127.0.0.1:1", "incarnation": "1"}


def test_labels_are_escaped_and_metrics_come_one_after_the_other() -> None:
    answer = {
        "group": "new\nline",
        "member": NAMES,
        "members": [NAMES],
        "view": 7,
        "sent": [],
        "received": [],
        "transport": {"sent": 3, "received": 2, "dropped": 1},
        "rejected": {"too short": 4},
    }
    own = r'group="new\nline",member="a\"b\\c",address="127.0.0.1:1"'
    lines = exposition([answer, answer]).splitlines()
    assert lines[:4] == [
        f"# HELP ringcast_members {METRICS['members'][1]}",
        "# TYPE ringcast_members gauge",
        f"ringcast_members{{{own}}} 1",
        f"ringcast_members{{{own}}} 1",
    ]
    assert lines[-1] == f'ringcast_datagrams_rejected_total{{{own},reason="too short"}} 4'
    assert f"ringcast_datagrams_dropped_total{{{own}}} 1" in lines
    assert not any("window" in line for line in lines)  # nothing is said of what is not there


def test_of_nobody_nothing_is_said() -> None:
    assert exposition([]) == ""
