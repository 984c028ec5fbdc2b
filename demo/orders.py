"""The orders of the demo, placed within the last half hour, with poison among them. Pure.

Each kind of poison fails in another way, so that each part of the product has something to show: bytes that nobody can read, a
field that is missing, a currency that the shop does not take, and a payment service that is busy at first.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

CUSTOMERS = 200
CURRENCIES = ("EUR", "USD", "GBP")
UNKNOWN_CURRENCY = "GALLEONS"
# Every so many orders one of each kind, at places that differ.
POISON_EVERY = 500
# Long enough ago that every minute of it is over.
PLACED_FROM, PLACED_UNTIL = timedelta(minutes=33), timedelta(minutes=3)


class Kind(StrEnum):
    GOOD = "good"
    NOT_JSON = "not JSON"
    NO_AMOUNT = "amount is missing"
    NO_SUCH_CURRENCY = "unknown currency"
    BUSY_AT_FIRST = "payment service busy at first"


_POISON_AT = {17: Kind.NOT_JSON, 123: Kind.NO_AMOUNT, 271: Kind.NO_SUCH_CURRENCY, 404: Kind.BUSY_AT_FIRST}


class Order(NamedTuple):
    number: int
    kind: Kind
    placed_at: datetime

    @property
    def customer(self) -> str:
        return f"customer-{self.number * 7919 % CUSTOMERS:03}"

    @property
    def amount(self) -> int:
        """In hundredths."""
        return 100 + self.number * 104_729 % 9_900

    @property
    def currency(self) -> str:
        return UNKNOWN_CURRENCY if self.kind is Kind.NO_SUCH_CURRENCY else CURRENCIES[self.number % len(CURRENCIES)]

    @property
    def value(self) -> bytes:
        if self.kind is Kind.NOT_JSON:
            return b"\x80 order %d, cut off in the mid" % self.number
        fields = {"id": self.number, "customer": self.customer, "amount": self.amount, "currency": self.currency}
        if self.kind is Kind.NO_AMOUNT:
            del fields["amount"]
        return json.dumps({**fields, "placed_at": self.placed_at.isoformat(timespec="milliseconds")}).encode()


def orders(count: int, now: datetime) -> Iterator[Order]:
    apart = (PLACED_FROM - PLACED_UNTIL) / count
    for number in range(count):
        yield Order(number, kind_of(number), now - PLACED_FROM + number * apart)


def kind_of(number: int) -> Kind:
    return _POISON_AT.get(number % POISON_EVERY, Kind.GOOD)


def counts(count: int) -> dict[Kind, int]:
    """How many there are of each kind."""
    found = dict.fromkeys(Kind, 0)
    for number in range(count):
        found[kind_of(number)] += 1
    return found
