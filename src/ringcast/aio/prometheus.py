"""What members tell about themselves, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

METRICS = {
    "members": ("gauge", "Members in the view."),
    "view": ("gauge", "Counter of the view."),
    "sent_total": ("counter", "Messages sent to the group."),
    "retransmitted_total": (
        "counter",
        "Messages to the group retransmitted because they were missed.",
    ),
    "window_messages": ("gauge", "Messages sent that not everybody is known to have taken."),
    "window_capacity_messages": ("gauge", "Messages that the window holds."),
    "window_bytes": ("gauge", "Bytes in the window."),
    "window_capacity_bytes": ("gauge", "Bytes that the window holds."),
    "blocked_seconds": ("gauge", "How long senders have been waiting for room; 0: they are not."),
    "delivered_total": (
        "counter",
        "Messages of a sender that this member's application has delivered.",
    ),
    "undelivered_messages": (
        "gauge",
        "Messages of a sender that wait for this member's application.",
    ),
    "gaps": ("gauge", "Ranges of a sender's messages that are missing."),
    "nacks_sent_total": ("counter", "Messages of a sender that were asked for again."),
    "datagrams_sent_total": ("counter", "Datagrams given to the system."),
    "datagrams_received_total": ("counter", "Datagrams that arrived."),
    "datagrams_dropped_total": ("counter", "Datagrams that the system did not take."),
    "datagrams_rejected_total": ("counter", "Datagrams that were refused, by reason."),
}

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(answers: Iterable[Mapping[str, Any]]) -> str:
    """One metric after the other, as the format wants it."""
    samples: dict[str, list[str]] = {name: [] for name in METRICS}
    for answer in answers:
        for name, labels, value in samples_of(answer):
            shown = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
            samples[name].append(f"ringcast_{name}{{{shown}}} {value}")
    lines = []
    for name, (kind, meaning) in METRICS.items():
        if samples[name]:
            lines += [f"# HELP ringcast_{name} {meaning}", f"# TYPE ringcast_{name} {kind}"]
            lines += samples[name]
    return "".join(f"{line}\n" for line in lines)


def samples_of(answer: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    me = answer["member"]
    own = {"group": answer["group"], "member": me["name"], "address": me["address"]}
    yield "members", own, len(answer["members"])
    yield "view", own, answer["view"]
    for window in answer["sent"]:
        labels = {**own, "stream": window["stream"]}
        yield "sent_total", labels, window["high"]
        yield "retransmitted_total", labels, window["retransmitted"]
        yield "window_messages", labels, window["high"] - window["low"]
        yield "window_capacity_messages", labels, window["capacity"]
        yield "window_bytes", labels, window["bytes"]
        yield "window_capacity_bytes", labels, window["bytes_max"]
        yield "blocked_seconds", labels, window["blocked_s"] or 0
    for window in answer["received"]:
        sender = window["sender"]
        labels = {
            **own,
            "sender": sender["name"],
            "sender_address": sender["address"],
            "stream": window["stream"],
        }
        yield "delivered_total", labels, window["delivered"]
        yield "undelivered_messages", labels, window["received"] - window["delivered"]
        yield "gaps", labels, window["gaps"]
        yield "nacks_sent_total", labels, window["nack_sent"]
    for key in ("sent", "received", "dropped"):
        yield f"datagrams_{key}_total", own, answer["transport"][key]
    for reason, count in answer["rejected"].items():
        yield "datagrams_rejected_total", {**own, "reason": reason}, count


def _escape(label: str) -> str:
    return label.translate(_ESCAPES)
