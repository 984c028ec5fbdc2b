"""A bank whose workers and broker are killed: the sum never changes, no transfer twice, none half. And the checks can fail."""

import os
import time
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.faults.bank import (
    ALL_PLACES,
    OPENING_ORDER,
    Book,
    Entry,
    Leg,
    Order,
    Outcomes,
    Place,
    Statement,
    compare,
    place_of,
    random_order,
)
from tests.faults.bank_rounds import CONFIGS, BankOutcome, BankRounds
from tests.faults.rounds import AFTER_A_CRASH, ROUNDS
from tidelog.testing import Broker

LEGS = (Leg(0, -30), Leg(1, 10), Leg(2, 20))
# Workers that were killed leave transactions to time out, and a machine may be busy.
ALSO_FINE = {"loop_lag", "client_paused", "transactions_timed_out"}


def check(broker: Broker, outcome: BankOutcome) -> None:
    assert outcome.problems == []
    assert [event for event in broker.events if event["event"] not in AFTER_A_CRASH | ALSO_FINE] == []
    assert [line for line in broker.log_lines if not line.startswith("{")] == []
    assert outcome.aborted > 0
    assert outcome.superseded > 0


def test_kills_of_the_bank(tmp_path: Path) -> None:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    with Broker(persist=tmp_path / "data", configs=CONFIGS) as broker:
        outcome = BankRounds(broker, tmp_path, Random(seed)).run(lambda number: number == ROUNDS)
        print(outcome)
        check(broker, outcome)
        assert outcome.orders > ROUNDS * 10
        assert outcome.snapshots >= ROUNDS // 2
        assert sum(event["event"] == "started" for event in broker.events) == ROUNDS + 2


@pytest.mark.soak
def test_kills_of_the_bank_for_long(tmp_path: Path) -> None:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    end = time.monotonic() + 60 * float(os.environ.get("TIDELOG_SOAK_MINUTES", "1"))
    with Broker(persist=tmp_path / "data", configs=CONFIGS) as broker:
        outcome = BankRounds(broker, tmp_path, Random(seed)).run(lambda _: time.monotonic() > end)
        print(outcome)
        check(broker, outcome)


# -- that the checks can fail ----------------------------------------------------------------------------------------------------


class Log:
    """The entries that a reader will see, and the next offset of each partition."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(ALL_PLACES, 0)
        self.book = Book()
        self.book.orders[1] = Order(1, LEGS)
        self.statement = Statement("reader", self.book)
        for leg in OPENING_ORDER.legs:
            self.add(Entry(0, "opening", *leg))

    def add(self, entry: Entry, place: Place | None = None) -> None:
        where = place_of(entry.account) if place is None else place
        self.statement.on_entry(where, self.ends[where], entry)
        # The marker of its transaction.
        self.ends[where] += 2
        self.statement.on_end(where, self.ends[where])

    def carry_out(self, *legs: Leg, order: int = 1, transaction: str = "t") -> None:
        for leg in legs:
            self.add(Entry(order, transaction, *leg))

    def finish(self, committed: frozenset[str] = frozenset(), aborted: frozenset[str] = frozenset()) -> list[str]:
        self.statement.finish(Outcomes(committed, aborted))
        return self.statement.problems


@pytest.fixture
def log() -> Log:
    return Log()


def test_good_history(log: Log) -> None:
    log.carry_out(*LEGS)
    log.statement.begin_snapshot(log.statement.half, log.ends)

    assert log.finish(frozenset({"t", "opening"}), frozenset({"u"})) == []
    assert (log.statement.carried_out, log.statement.snapshots) == (2, 1)


def test_order_that_was_never_carried_out(log: Log) -> None:
    assert log.finish() == ["reader: order 1 was never carried out"]


def test_half_transfer_in_a_snapshot(log: Log) -> None:
    log.carry_out(*LEGS[:2])
    half = log.statement.half
    log.statement.begin_snapshot(half, {place: end + 2 for place, end in log.ends.items()})
    assert log.statement.problems == []
    for place in ALL_PLACES:
        log.statement.on_end(place, log.ends[place] + 2)

    (problem,) = log.statement.problems
    assert problem.startswith("reader: order 1 is half carried out below")
    assert "half" in log.finish()[-1]


def test_half_transfer_that_becomes_whole_below_the_snapshot(log: Log) -> None:
    log.carry_out(*LEGS[:2])
    log.statement.begin_snapshot(log.statement.half, {place: end + 2 for place, end in log.ends.items()})
    log.carry_out(*LEGS[2:])
    for place in ALL_PLACES:
        log.statement.on_end(place, log.ends[place] + 2)

    assert log.finish() == []


def test_transfer_twice(log: Log) -> None:
    log.carry_out(*LEGS)
    log.carry_out(*LEGS, transaction="again")

    problems = log.finish()
    assert "reader: order 1 was carried out by t and by again" in problems
    assert sum("is there twice" in problem for problem in problems) == len(LEGS)


def test_one_entry_twice(log: Log) -> None:
    log.carry_out(*LEGS, LEGS[1])

    problems = log.finish()
    assert "is there twice" in problems[0]
    assert problems[1] == "reader: the sum is 12010 instead of 12000"


def test_entries_of_two_transactions(log: Log) -> None:
    log.carry_out(*LEGS[:2])
    log.carry_out(*LEGS[2:], transaction="other")

    assert log.finish() == ["reader: order 1 was carried out by t and by other"]


def test_aborted_and_lost_transactions(log: Log) -> None:
    log.carry_out(*LEGS)

    assert log.finish(committed=frozenset({"lost"}), aborted=frozenset({"t"})) == [
        "reader: transaction lost was committed and is not there",
        "reader: transaction t was aborted and is there",
    ]


def test_entries_that_nobody_ordered(log: Log) -> None:
    log.carry_out(*LEGS)
    log.carry_out(Leg(0, -31))
    log.carry_out(Leg(0, -30), order=2)

    assert [problem.split(" Entry")[0] for problem in log.finish()] == ["reader: nobody ordered"] * 2


def test_entry_in_the_wrong_place(log: Log) -> None:
    log.carry_out(*LEGS[1:])
    log.add(Entry(1, "t", *LEGS[0]), place_of(1))

    assert [problem.split(" is in ")[1] for problem in log.finish()] == [str(place_of(1))]


def test_entry_before_the_end_that_was_read(log: Log) -> None:
    log.statement.on_entry(place_of(0), 1, Entry(1, "t", *LEGS[0]))

    assert "was read after everything before" in log.finish()[0]


def test_readers_that_disagree(log: Log) -> None:
    other = Log()
    log.carry_out(*LEGS)
    other.carry_out(*reversed(LEGS), transaction="other")

    assert compare([log.statement, other.statement]) == ["reader and reader read different entries"]
    assert compare([log.statement, log.statement]) == []


def test_orders_move_money_and_make_none() -> None:
    random = Random(1)
    for number in range(100):
        order = random_order(number, random)
        assert sum(leg.amount for leg in order.legs) == 0
        assert len({leg.account for leg in order.legs}) == len(order.legs) >= 2
        assert Order.decode(order.encode()) == order
