"""The proof: each claim is one number that two sides have counted on their own. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from demo.orders import Kind
from demo.shop import Handled


class Claim(NamedTuple):
    says: str
    one: str
    one_count: int
    other: str
    other_count: int

    @property
    def holds(self) -> bool:
        return self.one_count == self.other_count


class Lake(NamedTuple):
    """What the tables say, asked by SQL after everything was written."""

    archived: int
    archived_bad: int
    revenue: int
    """Of orders that are not bad, in currencies that the shop takes."""
    windowed: int
    """Messages in windows that are closed. What has no time of its own counts as of now, and that window is open."""
    dead_letters: int
    audit_exit_code: int


def claims(kinds: Mapping[Kind, int], acknowledged: int, handled: Handled, lake: Lake) -> Sequence[Claim]:
    sent = sum(kinds.values())
    unreadable = kinds[Kind.NOT_JSON] + kinds[Kind.NO_AMOUNT]
    poison = unreadable + kinds[Kind.NO_SUCH_CURRENCY]
    return (
        Claim("every order that was sent is durable", "sent", sent, "acknowledged", acknowledged),
        Claim("every order was handled, or is a dead letter", "orders", sent, "handled + dead", handled.handled + handled.dead),
        Claim("what fails for a moment is not lost", "orders to book", sent - poison, "booked", handled.booked_orders),
        Claim("the archive has every order once", "acknowledged", acknowledged, "rows", lake.archived),
        Claim("bad orders are kept aside, none is lost", "not JSON or without amount", unreadable, "bad rows", lake.archived_bad),
        Claim("worker and table agree on the revenue", "booked, in cents", handled.booked_total, "SQL sum", lake.revenue),
        Claim(
            "the metrics have every order that says when", "not cut off", sent - kinds[Kind.NOT_JSON], "in windows", lake.windowed
        ),
        Claim("every dead letter is in the table", "given up", handled.dead, "rows", lake.dead_letters),
        Claim("the audit found no difference", "expected code", 0, "exit code", lake.audit_exit_code),
    )
