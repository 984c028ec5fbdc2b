"""A bank in topics, and what must be true of it for whoever reads what is committed.

A transfer takes and gives money in one transaction: one entry for each account, in that account's partition. An order says what a
transfer has to do. A worker does it with the order's offset in the same transaction, so each order is carried out once. The first
transfer opens all accounts; the others have a sum of 0.

What is right, at any moment:

- each entry belongs to an order, stands in its account's partition, and is there once;
- the entries of a transfer are of one transaction, and of none that its worker knows to be aborted;
- the sum of all transfers that are there whole is the sum of the accounts' opening;
- a transfer is never half: as soon as one entry can be read, its transaction is committed, so all its entries were written
  before. They lie below the high watermarks that are asked for after that. A reader that has come so far and has not
  found them has seen half a transfer.

At the end all orders are carried out, and all transactions that a worker knows to be committed are there.
"""

import threading
from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple

ORDERS = "orders"
TOPICS = ("checking", "savings")
PARTITIONS = 3
ACCOUNTS = 12
OPENING_BALANCE = 1_000
OPENING = 0
"""The number of the order that opens the accounts."""
LEGS_MAX = 4
AMOUNT_MAX = 100


class Place(NamedTuple):
    topic: str
    partition: int


ALL_PLACES = tuple(Place(topic, partition) for topic in TOPICS for partition in range(PARTITIONS))


def place_of(account: int) -> Place:
    return ALL_PLACES[account % len(ALL_PLACES)]


class Leg(NamedTuple):
    account: int
    amount: int


class Order(NamedTuple):
    number: int
    legs: tuple[Leg, ...]

    def encode(self) -> bytes:
        return " ".join([str(self.number), *(f"{account}:{amount}" for account, amount in self.legs)]).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Order":
        number, *legs = data.decode().split(" ")
        return cls(int(number), tuple(Leg(*map(int, leg.split(":"))) for leg in legs))


class Entry(NamedTuple):
    order: int
    transaction: str
    account: int
    amount: int

    def encode(self) -> bytes:
        return f"{self.order} {self.transaction} {self.account} {self.amount}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Entry":
        order, transaction, account, amount = data.decode().split(" ")
        return cls(int(order), transaction, int(account), int(amount))


OPENING_ORDER = Order(OPENING, tuple(Leg(account, OPENING_BALANCE) for account in range(ACCOUNTS)))


def random_order(number: int, random: Random) -> Order:
    """Money of one account for one or several others."""
    giver, *takers = random.sample(range(ACCOUNTS), random.randint(2, LEGS_MAX))
    amounts = [random.randint(1, AMOUNT_MAX) for _ in takers]
    return Order(number, (Leg(giver, -sum(amounts)), *map(Leg, takers, amounts)))


class Book:
    """All orders, noted before they are sent; all statements are held against it."""

    def __init__(self) -> None:
        self.orders: dict[int, Order] = {OPENING: OPENING_ORDER}


class Outcomes(NamedTuple):
    """What workers know of their transactions."""

    committed: frozenset[str]
    aborted: frozenset[str]


class Statement:
    """What one reader of committed records has seen, checked while it happens. One thread feeds it, others may look."""

    def __init__(self, name: str, book: Book) -> None:
        self.name = name
        self.problems: list[str] = []
        self.entries: dict[tuple[Place, int], Entry] = {}
        self.carried_out = 0
        """How many transfers are there whole."""
        self.snapshots = 0
        self.progress = dict.fromkeys(ALL_PLACES, 0)
        """Up to where everything was read."""
        self._book = book
        self._total = 0
        self._transactions: dict[int, str] = {}
        self._missing: dict[int, set[int]] = {}
        """Of each transfer of which something was seen: the accounts that are missing."""
        self._half: dict[int, int] = {}
        """Transfers that are not whole: what was seen of them so far."""
        self._snapshot: tuple[frozenset[int], dict[Place, int]] | None = None
        self._lock = threading.Lock()

    @property
    def half(self) -> frozenset[int]:
        """What a snapshot begins with. Ask for this first, then for the high watermarks."""
        with self._lock:
            return frozenset(self._half)

    def on_entry(self, place: Place, offset: int, entry: Entry) -> None:
        with self._lock:
            if offset < self.progress[place]:
                self._problem(f"{entry} at {place} {offset} was read after everything before {self.progress[place]}")
                return
            self.entries[place, offset] = entry
            self._take(place, entry)
            self._note_progress(place, offset + 1)

    def on_end(self, place: Place, offset: int) -> None:
        """There is nothing to be read before ``offset`` any more."""
        with self._lock:
            self._note_progress(place, offset)

    def begin_snapshot(self, half: frozenset[int], high_watermarks: Mapping[Place, int]) -> None:
        with self._lock:
            self._snapshot = half, dict(high_watermarks)
            self._maybe_end_snapshot()

    @property
    def is_in_snapshot(self) -> bool:
        return self._snapshot is not None

    def has_read_up_to(self, offsets: Mapping[Place, int]) -> bool:
        return all(self.progress[place] >= offset for place, offset in offsets.items())

    def finish(self, outcomes: Outcomes) -> None:
        """Everything was read, and nothing is under way."""
        with self._lock:
            for order in self._book.orders:
                if order not in self._transactions:
                    self._problem(f"order {order} was never carried out")
            for order in self._half:
                self._problem(f"order {order} is half carried out: accounts {sorted(self._missing[order])} are missing")
            seen = set(self._transactions.values())
            for transaction in sorted(outcomes.committed - seen):
                self._problem(f"transaction {transaction} was committed and is not there")
            for transaction in sorted(outcomes.aborted & seen):
                self._problem(f"transaction {transaction} was aborted and is there")
            self._check_sum()

    def _take(self, place: Place, entry: Entry) -> None:
        order = self._book.orders.get(entry.order)
        if order is None or (entry.account, entry.amount) not in order.legs:
            self._problem(f"nobody ordered {entry}")
            return
        if place_of(entry.account) != place:
            self._problem(f"{entry} is in {place}")
        self._total += entry.amount
        if self._transactions.setdefault(entry.order, entry.transaction) != entry.transaction:
            self._problem(f"order {entry.order} was carried out by {self._transactions[entry.order]} and by {entry.transaction}")
        missing = self._missing.setdefault(entry.order, {account for account, _ in order.legs})
        if entry.account not in missing:
            self._problem(f"{entry} is there twice")
            return
        missing.remove(entry.account)
        self._half[entry.order] = self._half.get(entry.order, 0) + entry.amount
        if not missing:
            del self._half[entry.order]
            self.carried_out += 1

    def _note_progress(self, place: Place, offset: int) -> None:
        self.progress[place] = max(self.progress[place], offset)
        self._maybe_end_snapshot()

    def _maybe_end_snapshot(self) -> None:
        if self._snapshot is None or not self.has_read_up_to(self._snapshot[1]):
            return
        half, offsets = self._snapshot
        self._snapshot = None
        self.snapshots += 1
        for order in sorted(half & self._half.keys()):
            below = [*offsets.values()]
            self._problem(f"order {order} is half carried out below {below}: accounts {sorted(self._missing[order])} are missing")
        self._check_sum()

    def _check_sum(self) -> None:
        whole = self._total - sum(self._half.values())
        expected = 0 if self._missing.get(OPENING, True) else ACCOUNTS * OPENING_BALANCE
        if whole != expected:
            self._problem(f"the sum is {whole} instead of {expected}")

    def _problem(self, text: str) -> None:
        self.problems.append(f"{self.name}: {text}")


def compare(statements: Iterable[Statement]) -> list[str]:
    """All who read to the end must have read the same."""
    first, *others = statements
    return [f"{other.name} and {first.name} read different entries" for other in others if other.entries != first.entries]
