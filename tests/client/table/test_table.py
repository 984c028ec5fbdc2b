"""Tables: what is in them when they are ready, what they follow, and what makes them reload."""

import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.client.consuming import until
from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import (
    BrokerUnavailable,
    Closed,
    InvalidArgument,
    SerializationError,
    TidelogError,
    TimedOut,
    UnknownTopic,
)
from tidelog.client.table import Table, follower
from tidelog.client.table.storage import SqliteStorage, TableIdentity, TableStorageError
from tidelog.testing import Broker

SECONDS_MAX = 120.0
COMPACTED = {"cleanup.policy": "compact"}


class Writer:
    """Sends rows with confluent-kafka alone; each call returns when they are acknowledged."""

    def __init__(self, kafka: ToolkitBroker, topic: str, **config: Any) -> None:
        self.topic = topic
        self.raw = KafkaProducer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, **config})

    def __call__(self, rows: dict[str, str | None], partition: int = 0) -> None:
        for key, value in rows.items():
            self.raw.produce(self.topic, None if value is None else value.encode(), key.encode(), partition)
        assert self.raw.flush(SECONDS_MAX) == 0


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else f"sqlite:{tmp_path / 'table.db'}"


@pytest.fixture
def topic(kafka: ToolkitBroker) -> str:
    return new_topic(kafka, 2, COMPACTED)


def opened(kafka: ToolkitBroker, topic: str, **arguments: Any) -> Table:
    return Table(topic, bootstrap=kafka.bootstrap, **{"values": "text", "check_interval": 0.2, **arguments})


def loaded(kafka: ToolkitBroker, topic: str, **arguments: Any) -> Table:
    table = opened(kafka, topic, **arguments)
    table.wait_ready(SECONDS_MAX)
    return table


@cache
def admin(kafka: ToolkitBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})


def test_newest_values_tombstones_and_changes(kafka: ToolkitBroker, topic: str, storage: str) -> None:
    write = Writer(kafka, topic)
    write({"a": "1", "b": "1", "c": "1"})
    write({"d": "1"}, partition=1)
    write({"a": "2", "b": None, "never": None})
    with loaded(kafka, topic, storage=storage) as table:
        assert table.ready
        assert dict(table) == {"a": "2", "c": "1", "d": "1"} == dict(table.rows())
        assert (len(table), "a" in table, "b" in table, table.get("b"), table[b"a"]) == (3, True, False, None, "2")
        with pytest.raises(KeyError):
            table["b"]
        changes: list[tuple[str, Any]] = []
        table.on_change(lambda key, value: changes.append((key, value)))
        write({"a": "3", "c": None, "e": "1"})
        table.wait_for(lambda table: "e" in table and "c" not in table, SECONDS_MAX)
        assert dict(table) == {"a": "3", "d": "1", "e": "1"}
        until(lambda: changes == [("a", "3"), ("c", None), ("e", "1")])


def test_an_empty_topic_is_ready(kafka: ToolkitBroker, topic: str, storage: str) -> None:
    with loaded(kafka, topic, storage=storage) as table:
        assert dict(table) == {}
        assert len(table) == 0


def test_transactions(kafka: ToolkitBroker, topic: str, storage: str) -> None:
    """Markers at the end, aborted rows, and an open transaction: ready all the same, with what is committed."""
    write = Writer(kafka, topic, **{"transactional.id": f"{topic}-1"})
    write.raw.init_transactions()
    write.raw.begin_transaction()
    write({"a": "committed"})
    write.raw.commit_transaction()
    write.raw.begin_transaction()
    write({"a": "aborted"})
    write({"b": "aborted"}, partition=1)
    write.raw.abort_transaction()
    with loaded(kafka, topic, storage=storage) as table:
        assert dict(table) == {"a": "committed"}
        write.raw.begin_transaction()
        write({"a": "open"})
        with loaded(kafka, topic) as second:
            assert dict(second) == {"a": "committed"}
        assert table["a"] == "committed"
        write.raw.commit_transaction()
        table.wait_for(lambda table: table["a"] == "open", SECONDS_MAX)


def test_a_restart_reads_only_what_has_changed(kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'table.db'}"
    write = Writer(kafka, topic)
    write({f"key-{number}": "1" for number in range(500)})
    with loaded(kafka, topic, storage=storage) as table:
        assert (len(table), table._follower.loads) == (500, 1)
        positions = table.positions()
    write({"key-1": None, "key-2": "2"})
    with loaded(kafka, topic, storage=storage) as table:
        assert table._follower.loads == 0
        assert (len(table), table.get("key-1"), table["key-2"]) == (499, None, "2")
        assert table.positions()[0] == positions[0] + 2


def test_a_topic_that_was_created_again_is_reloaded(kafka: ToolkitBroker, storage: str) -> None:
    topic = new_topic(kafka, 1, COMPACTED)
    Writer(kafka, topic)({"old": "1", "older": "1"})
    with loaded(kafka, topic, storage=storage) as table:
        recreate(kafka, topic)
        Writer(kafka, topic)({"new": "1"})
        table.wait_for(lambda table: "new" in table and table.ready, SECONDS_MAX)
        assert dict(table) == {"new": "1"}
        recreate(kafka, topic)
        Writer(kafka, topic)({"newest": "1", "other": "1", "third": "1"})
    if storage != "memory":
        with loaded(kafka, topic, storage=storage) as table:
            assert dict(table) == {"newest": "1", "other": "1", "third": "1"}


def recreate(kafka: ToolkitBroker, topic: str) -> None:
    admin(kafka).delete_topics([topic])[topic].result()
    until(lambda: topic not in admin(kafka).list_topics(timeout=10).topics)
    create_topic(kafka.bootstrap, topic, config=COMPACTED)


def test_messages_that_were_deleted_unread_make_it_reload(kafka: ToolkitBroker, tmp_path: Path) -> None:
    topic, storage = new_topic(kafka, 1, {"cleanup.policy": "compact,delete"}), f"sqlite:{tmp_path / 'table.db'}"
    write = Writer(kafka, topic)
    write({"a": "1", "b": "1"})
    with loaded(kafka, topic, storage=storage) as table:
        assert len(table) == 2
    write({"a": None, "b": "2", "c": "1"})
    # The tombstone goes, unseen.
    admin(kafka).delete_records([TopicPartition(topic, 0, 3)])[TopicPartition(topic, 0, 3)].result()
    with loaded(kafka, topic, storage=storage) as table:
        assert dict(table) == {"b": "2", "c": "1"}


def test_a_table_that_was_away_for_long_is_reloaded(kafka: ToolkitBroker, tmp_path: Path) -> None:
    """No message that it would read tells that a tombstone has been compacted away."""
    topic, storage = new_topic(kafka, 1, COMPACTED), f"sqlite:{tmp_path / 'table.db'}"
    Writer(kafka, topic)({"a": "1"})
    with loaded(kafka, topic, storage=storage):
        pass
    for away_ms, loads in ((3_600_000, 0), (13 * 3_600_000, 1)):
        kept = SqliteStorage(storage.removeprefix("sqlite:"))
        progress = kept.progress()
        assert progress is not None
        kept.apply([], {}, progress.caught_up_ms - away_ms)
        kept.close()
        with loaded(kafka, topic, storage=storage) as table:
            assert table._follower.loads == loads


def test_new_partitions_join(kafka: ToolkitBroker, storage: str) -> None:
    topic = new_topic(kafka, 1, COMPACTED)
    write = Writer(kafka, topic)
    write({"a": "1"})
    with loaded(kafka, topic, storage=storage) as table:
        admin(kafka).create_partitions([NewPartitions(topic, 2)])[topic].result()
        until(lambda: len(admin(kafka).list_topics(topic, timeout=10).topics[topic].partitions) == 2)
        Writer(kafka, topic)({"b": "1"}, partition=1)
        table.wait_for(lambda table: "b" in table, SECONDS_MAX)
        assert table._follower.loads == 1


def test_values_are_decoded_when_they_are_read(kafka: ToolkitBroker, topic: str, storage: str) -> None:
    Writer(kafka, topic)({"good": '{"n": 1}', "bad": "{", "umlaut-ä": "[]"})
    with loaded(kafka, topic, storage=storage, values="json") as table:
        assert table["good"] == {"n": 1}
        assert table["umlaut-ä"] == []
        with pytest.raises(SerializationError, match="'bad'"):
            table["bad"]
    with loaded(kafka, topic, values=lambda value: value.upper()) as table:
        assert table["good"] == b'{"N": 1}'


def test_a_key_that_is_no_text_and_none(kafka: ToolkitBroker, storage: str) -> None:
    topic = new_topic(kafka)
    write = Writer(kafka, topic)
    write.raw.produce(topic, b"1", b"\xff\x00")
    write.raw.produce(topic, b"no key")
    assert write.raw.flush(SECONDS_MAX) == 0
    with loaded(kafka, topic, storage=storage) as table:
        [key] = table
        assert table[key] == table[b"\xff\x00"] == "1"
        assert table._follower.keyless == 1


def test_a_callback_that_fails_does_not_stop_the_table(
    kafka: ToolkitBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with loaded(kafka, topic, on_change=lambda key, value: 1 / 0) as table:
        Writer(kafka, topic)({"a": "1"})
        table.wait_for(lambda table: "a" in table, SECONDS_MAX)
        Writer(kafka, topic)({"b": "1"})
        table.wait_for(lambda table: "b" in table, SECONDS_MAX)
        until(lambda: "on_change failed" in caplog.text)


def test_refusals(kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic, match="not-there"):
        opened(kafka, "not-there")
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        Table("t", bootstrap="127.0.0.1:1", connect_timeout=0.3)
    for wrong in (
        {"values": "xml"},
        {"storage": "disk"},
        {"storage": "sqlite:"},
        {"isolation": "no"},
        {"config": {"group.id": "g"}},
    ):
        with pytest.raises(InvalidArgument):
            opened(kafka, topic, **wrong)
    with pytest.raises(InvalidArgument):
        opened(kafka, "")
    with pytest.raises(TableStorageError, match="check the directory"):
        opened(kafka, topic, storage=f"sqlite:{tmp_path}/no/such/directory")
    (tmp_path / "damaged.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(TableStorageError, match="may be deleted"):
        opened(kafka, topic, storage=f"sqlite:{tmp_path}/damaged.db")


def test_one_file_has_one_writer(kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'table.db'}"
    with loaded(kafka, topic, storage=storage), pytest.raises(TableStorageError, match="in use"):
        opened(kafka, topic, storage=storage)
    loaded(kafka, topic, storage=storage).close()


def test_a_file_of_another_topic_or_isolation_is_reloaded(kafka: ToolkitBroker, topic: str, tmp_path: Path) -> None:
    storage, other = f"sqlite:{tmp_path / 'table.db'}", new_topic(kafka)
    Writer(kafka, topic)({"a": "1"})
    Writer(kafka, other)({"b": "1"})
    for name, isolation, rows in ((topic, "read_committed", {"a": "1"}), (other, "read_committed", {"b": "1"})):
        with loaded(kafka, name, storage=storage, isolation=isolation) as table:
            assert dict(table) == rows
    with loaded(kafka, other, storage=storage, isolation="read_uncommitted") as table:
        assert table._follower.loads == 1


def test_closed_and_not_ready(kafka: ToolkitBroker, topic: str) -> None:
    Writer(kafka, topic)({"a": "1"})
    table = loaded(kafka, topic)
    with pytest.raises(TimedOut, match="does not hold"):
        table.wait_for(lambda table: False, 0.05)
    assert repr(table) == f"<Table {topic} ready>"
    table.close()
    table.close()
    for call in (table.wait_ready, lambda: table["a"], lambda: len(table), lambda: "a" in table, lambda: list(table)):
        with pytest.raises(Closed):
            call()


@pytest.mark.tidelog_only
def test_a_broker_that_does_not_answer_for_a_while_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "REQUEST_SECONDS", 0.3)
    with Broker() as broker:
        kafka = ToolkitBroker(broker.bootstrap_servers)
        topic = create_topic(kafka.bootstrap, "customers", config=COMPACTED)
        write = Writer(kafka, topic)
        write({"a": "1"})
        with loaded(kafka, topic) as table:
            asked: list[object] = []
            facts = table._follower._source.facts

            def counted() -> follower.TableTopic:
                asked.append(None)
                return facts()

            monkeypatch.setattr(table._follower._source, "facts", counted)
            os.kill(broker.pid, signal.SIGSTOP)
            # Whoever's time is over first: librdkafka's, or that of its future.
            until(lambda: len(asked) > 5)
            os.kill(broker.pid, signal.SIGCONT)
            write({"b": "2"})
            table.wait_for(lambda table: "b" in table, SECONDS_MAX)
            assert table.ready


def test_what_ends_the_following_is_told(kafka: ToolkitBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(kafka, topic) as table:

        def fail(_: float) -> tuple[list[Any], dict[int, int]]:
            raise RuntimeError("a bug")

        monkeypatch.setattr(table._follower._source, "read", fail)
        until(lambda: not table.ready)
        with pytest.raises(TidelogError, match="a bug"):
            table.wait_ready(SECONDS_MAX)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteStorage]:
    storage = SqliteStorage(str(tmp_path / "rows.db"))
    storage.reset(TableIdentity("t", "id", "read_committed"), 7)
    yield storage
    storage.close()


def test_rows_and_positions_are_stored_together_or_not_at_all(file: SqliteStorage) -> None:
    file.apply([(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)], {0: 4}, None)
    assert (list(file.items()), file.progress()) == ([(b"a", b"2")], (("t", "id", "read_committed"), {0: 4}, 7))
    with pytest.raises(TableStorageError):
        # The last statement fails.
        file.apply([(b"a", b"3"), (b"c", b"1")], {0: None}, 9)  # type: ignore[dict-item]  # that is how
    progress = file.progress()
    assert progress is not None
    assert (list(file.items()), progress.positions, progress.caught_up_ms) == ([(b"a", b"2")], {0: 4}, 7)


def test_iteration_goes_page_by_page(file: SqliteStorage) -> None:
    rows = {b"%05d" % number: b"v" for number in range(1_234)}
    file.apply(list(rows.items()), {}, None)
    found = []
    for key, value in file.items():
        found.append((key, value))
        if len(found) == 600:
            file.apply([(b"00000", None), (b"99999", b"late")], {}, None)
    assert found == [*sorted(rows.items()), (b"99999", b"late")]
    assert file.count() == 1_234
