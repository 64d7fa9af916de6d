"""The traders of `ringcast demo`: what they send, and how they add up."""

from __future__ import annotations

import json
import random

from ringcast.sim.member_process import PRICES, Ledger, make_orders


def test_a_ledger_counts_orders_and_cents_by_sender_and_guarantee() -> None:
    ledger = Ledger()
    ledger.add("m1", "uniform", [b'{"item": "tea", "cents": 680, "customer": 7}'])
    ledger.add("m0", "fifo", [b'{"cents": 1}', b'{"cents": 20}'])
    ledger.add("m0", "fifo", [b'{"cents": 300}'])
    ledger.add("m0", "uniform", [b'{"cents": 4000}'])
    assert ledger.rows() == [
        ("m0", "fifo", 3, 321),
        ("m0", "uniform", 1, 4000),
        ("m1", "uniform", 1, 680),
    ]


def test_orders_are_small_json_and_the_same_for_a_seed() -> None:
    payloads = make_orders(random.Random(1), 50)
    orders = [json.loads(payload) for payload in payloads]
    assert len(orders) == 50
    assert {order["item"] for order in orders} == set(PRICES)
    for order in orders:
        assert order.keys() == {"item", "cents", "customer"}
        assert order["cents"] % PRICES[order["item"]] == 0
    assert max(map(len, payloads)) < 80
    assert payloads == make_orders(random.Random(1), 50) != make_orders(random.Random(2), 50)
