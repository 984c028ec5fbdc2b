"""The ledger in a topic of a real broker."""

import secrets
import time
from collections.abc import Iterator

import pytest

from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.client.transactions.fenced_writer import FencedWriter
from tidelog.client.wire.brokers import Brokers
from tidelog.spark.sink import ledger as ledger_module
from tidelog.spark.sink.job import Decision, LedgerEntry, LedgerUnusable, Superseded, encode_entry
from tidelog.spark.sink.ledger import LEDGER_PARTITIONS, LEDGER_TIMEOUT_MS, LedgerCluster, TopicLedger
from tidelog.spark.sink.names import ledger_topic, write_job

DAY_MS = 24 * 3_600_000


class Place:
    """A prefix of its own: a ledger topic for each test."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = f"test-{secrets.token_hex(4)}"
        self.brokers = Brokers(bootstrap, "test", 3, 30)
        self.admin = TransactionAdmin(bootstrap)
        self.days = 0
        """From today on."""
        self._made: list[TopicLedger] = []

    def ledger(self, job: str = "job") -> TopicLedger:
        made = TopicLedger(LedgerCluster(self.bootstrap, self.brokers, self.admin.topic_config), self.prefix, job, self.now_ms)
        self._made.append(made)
        return made

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.days * DAY_MS

    def close(self) -> None:
        for each in self._made:
            each.close()
        self.brokers.close()
        self.admin.close()


def becomes(entry: LedgerEntry) -> Decision:
    return lambda _: entry


@pytest.fixture
def place(kafka: ToolkitBroker) -> Iterator[Place]:
    place = Place(kafka.bootstrap)
    yield place
    place.close()


def test_an_entry_is_there_for_everybody(place: Place) -> None:
    first = place.ledger()
    assert first.read() is None
    assert first.update(lambda entry: LedgerEntry("one")) == (LedgerEntry("one"), True)
    assert first.update(lambda entry: None) == (LedgerEntry("one"), False)
    assert place.ledger().read() == LedgerEntry("one")
    assert place.ledger("other").read() is None
    assert place.ledger().update(lambda entry: LedgerEntry("two", 1, 5)) == (LedgerEntry("two", 1, 5), True)
    assert first.read() == LedgerEntry("two", 1, 5)


def test_whoever_decided_on_what_is_no_longer_so_decides_again(place: Place) -> None:
    early, late = place.ledger(), place.ledger()
    early.update(lambda entry: LedgerEntry("early"))
    seen: list[LedgerEntry | None] = []

    def decide(entry: LedgerEntry | None) -> LedgerEntry:
        seen.append(entry)
        if len(seen) == 1:
            late.update(lambda entry: LedgerEntry("late", 1, 7))
        assert entry is not None
        return entry._replace(generation=entry.generation + 1)

    assert early.update(decide) == (LedgerEntry("late", 2, 7), True)
    assert seen == [LedgerEntry("early"), LedgerEntry("late", 1, 7)]
    assert place.ledger().read() == LedgerEntry("late", 2, 7)


def test_a_refusal_is_not_founded_on_what_may_be_old(place: Place) -> None:
    early, late = place.ledger(), place.ledger()
    early.update(becomes(LedgerEntry("early")))
    late.update(becomes(LedgerEntry("late", 1, 7)))
    assert early.update(lambda entry: None) == (LedgerEntry("late", 1, 7), False)

    def only_after_late(entry: LedgerEntry | None) -> LedgerEntry:
        if entry is None or entry.run != "late":
            raise Superseded("x")
        return entry._replace(batch=8)

    early.update(becomes(LedgerEntry("early")))
    late.update(becomes(LedgerEntry("late", 1, 7)))
    assert early.update(only_after_late) == (LedgerEntry("late", 1, 8), True)


def test_jobs_do_not_disturb_each_other(place: Place) -> None:
    ledgers = {name: place.ledger(name) for name in map(str, range(12))}
    for number in range(2):
        for name, ledger in ledgers.items():
            ledger.update(becomes(LedgerEntry(name, 0, number)))
    for name in ledgers:
        assert place.ledger(name).read() == LedgerEntry(name, 0, 1)


def test_a_record_that_its_writer_left_undecided_never_comes(place: Place) -> None:
    place.ledger().update(lambda entry: LedgerEntry("one"))
    crashed = FencedWriter(place.brokers, f"{place.prefix}-job-ledger", LEDGER_TIMEOUT_MS)
    crashed.begin()
    partition = place.ledger()._partition
    crashed.write(ledger_topic(place.prefix), partition, [(b"job", encode_entry(LedgerEntry("x")))], int(time.time() * 1000))
    entry, _ = place.ledger().update(lambda entry: None)
    assert entry == LedgerEntry("one")


def test_old_entries_of_writes_are_deleted_and_queries_stay(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "LEDGER_PARTITIONS", 1)
    place.days = -31
    ended, unended = LedgerEntry("r", 0, 0), LedgerEntry("r", 0, 0, False)
    for job, entry in ((write_job("old"), ended), (write_job("once-x"), ended), (write_job("open"), unended), ("query", ended)):
        place.ledger(job).update(becomes(entry))
    place.days = 0
    place.ledger(write_job("new")).update(lambda entry: ended)
    assert place.ledger(write_job("once-x")).read() is None
    assert place.ledger(write_job("old")).read() is None
    assert place.ledger(write_job("open")).read() == unended
    assert place.ledger(write_job("new")).read() == ended
    assert place.ledger("query").read() == ended


def test_a_topic_that_is_no_ledger_is_refused(place: Place) -> None:
    create_topic(place.bootstrap, ledger_topic(place.prefix), partitions=2)
    with pytest.raises(LedgerUnusable, match="has 2 partitions, not 8"):
        place.ledger().read()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_ledger_that_would_forget_is_refused(place: Place, policy: str) -> None:
    create_topic(place.bootstrap, ledger_topic(place.prefix), partitions=LEDGER_PARTITIONS, config={"cleanup.policy": policy})
    with pytest.raises(LedgerUnusable, match=f"has cleanup.policy={policy}"):
        place.ledger().read()


def test_what_others_wrote_there_is_refused(place: Place) -> None:
    ledger = place.ledger()
    ledger.read()
    writer = FencedWriter(place.brokers, "stranger", LEDGER_TIMEOUT_MS)
    writer.begin()
    writer.write(ledger_topic(place.prefix), ledger._partition, [(b"job", b"hello")], int(time.time() * 1000))
    writer.commit()
    with pytest.raises(LedgerUnusable, match="Tidelog did not write: b'hello'"):
        ledger.read()
