"""The orders of the demo, and the proof at its end."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from demo.orders import CURRENCIES, POISON_EVERY, Kind, counts, orders
from demo.proof import Lake, claims
from demo.shop import Handled

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
COUNT = 2 * POISON_EVERY
KINDS = counts(COUNT)
BOOKED = [order for order in orders(COUNT, NOW) if order.kind in (Kind.GOOD, Kind.BUSY_AT_FIRST)]
HANDLED = Handled(COUNT - 6, 6, 6, len(BOOKED), sum(order.amount for order in BOOKED), 1.0)
LAKE = Lake(COUNT, 4, HANDLED.booked_total, COUNT - 2, 6, 0)


def test_every_kind_of_poison_is_among_them() -> None:
    assert {kind: 2 for kind in Kind if kind is not Kind.GOOD} | {Kind.GOOD: COUNT - 8} == KINDS


def test_poison_is_what_it_says() -> None:
    by_kind = {order.kind: order for order in orders(POISON_EVERY, NOW)}
    with pytest.raises(ValueError, match=r"codec can't decode|Expecting value"):
        json.loads(by_kind[Kind.NOT_JSON].value)
    assert "amount" not in json.loads(by_kind[Kind.NO_AMOUNT].value)
    assert json.loads(by_kind[Kind.NO_SUCH_CURRENCY].value)["currency"] not in CURRENCIES


def test_orders_were_placed_in_minutes_that_are_over() -> None:
    placed = [order.placed_at for order in orders(COUNT, NOW)]
    assert placed == sorted(placed)
    assert NOW - placed[0] < timedelta(hours=1)
    assert NOW - placed[-1] >= timedelta(minutes=2)


def test_claims_hold_when_the_sides_agree() -> None:
    assert [claim for claim in claims(KINDS, COUNT, HANDLED, LAKE) if not claim.holds] == []


@pytest.mark.parametrize("field", Lake._fields)
def test_whatever_a_table_has_too_much_is_noticed(field: str) -> None:
    differing = [
        claim for claim in claims(KINDS, COUNT, HANDLED, LAKE._replace(**{field: getattr(LAKE, field) + 1})) if not claim.holds
    ]
    assert len(differing) == 1


@pytest.mark.parametrize("field", ["handled", "dead", "booked_orders", "booked_total"])
def test_whatever_the_worker_counts_wrong_is_noticed(field: str) -> None:
    wrong = HANDLED._replace(**{field: getattr(HANDLED, field) - 1})
    assert [claim for claim in claims(KINDS, COUNT, wrong, LAKE) if not claim.holds]
