"""Listing, showing, replaying, discarding and counting dead letters on a real broker."""

import asyncio
import secrets
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compatibility.apache_kafka import wait_until
from tests.deadletters.letters import HOUR_MS, Letters, now_ms, plain_headers, read_all, values
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client import admin as admin_module
from tidelog.client.admin import Admin
from tidelog.client.errors import BrokerUnavailable, InvalidArgument, MessageTooLarge, UnknownTopic
from tidelog.client.librdkafka import wait_for_broker
from tidelog.deadletters import AsyncDeadLetters, DeadLetters, Letter
from tidelog.deadletters.dead_letter import NO_STORY
from tidelog.deadletters.dead_letters import NoSuchLetter
from tidelog.deadletters.replay import Progress


def test_letters_are_counted_by_group_error_and_age(letters: Letters, dead_letters: DeadLetters) -> None:
    old = letters.letter(exception_class="TimeoutError", last_failure_ms=now_ms() - 30 * HOUR_MS)
    letters.write(letters.letter(), letters.letter(partition=1), old)
    stock, timeout = dead_letters.list(letters.topic)
    assert (stock.topic, stock.group, stock.error, stock.letters) == (letters.topic, "email", "app.errors.OutOfStock", 2)
    assert stock.by_age == (2, 0, 0, 0)
    assert (timeout.error, timeout.letters, timeout.by_age) == ("TimeoutError", 1, (0, 0, 1, 0))
    assert timeout.oldest_ms == timeout.newest_ms == old.last_failure_ms
    assert letters.topic in dead_letters.topics()
    assert stock in dead_letters.list()


def test_a_letter_is_shown_with_its_story_and_what_became_of_it(letters: Letters, dead_letters: DeadLetters) -> None:
    story = letters.letter(partition=1)
    letters.write(story, key=b"\xff", value=b"\x00raw", headers=[("a", b"1"), ("a", None)])
    shown = dead_letters.show(letters.topic, 1, 0)
    assert shown.mark is None
    assert shown.dead_letter.letter == story
    assert (shown.dead_letter.key, shown.dead_letter.value) == (b"\xff", b"\x00raw")
    assert shown.dead_letter.original_headers == [("a", b"1"), ("a", None)]
    dead_letters.replay(letters.topic)
    mark = dead_letters.show(letters.topic, 1, 0).mark
    assert mark is not None
    assert (mark.kind, mark.target) == ("replayed", letters.retry)


def test_no_letter_there(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write(letters.letter())
    with pytest.raises(NoSuchLetter, match="its offsets there are 0 to 0"):
        dead_letters.show(letters.topic, 0, 1)
    with pytest.raises(NoSuchLetter, match="the partition is empty"):
        dead_letters.show(letters.topic, 1, 0)
    with pytest.raises(NoSuchLetter, match="no partition 2: it has 0 to 1"):
        dead_letters.show(letters.topic, 2, 0)


def test_a_replay_goes_to_the_retry_topic_of_the_group(letters: Letters, dead_letters: DeadLetters) -> None:
    stories = [letters.letter(partition=number % 2, level=4, due_ms=5) for number in range(10)]
    letters.write(*stories)
    before = now_ms()
    told: list[Progress] = []
    done = dead_letters.replay(letters.topic, progress=told.append)
    assert (done.letters, done.done_before, done.not_fitting, done.foreign) == (10, 0, 0, 0)
    assert done.targets == {letters.retry: 10}
    assert told[-1] == Progress(read=10, total=10, letters=10)
    arrived = read_all(letters.bootstrap, letters.retry)
    assert sorted(values(arrived)) == list(range(10))
    for message in arrived:
        story = stories[int(message.value())]
        found = Letter.from_headers(message.headers())
        assert found is not None
        assert found.due_ms is not None
        assert before <= found.due_ms <= now_ms()
        assert found == story._replace(attempts=0, level=0, due_ms=found.due_ms, replays=1)
        assert message.partition() == story.partition
        assert message.key() == message.value()
        assert plain_headers(message) == [("content-type", b"text/plain")]


def test_a_second_replay_sends_nothing_twice_and_goes_on_with_the_new(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(6)
    assert dead_letters.replay(letters.topic, partition=0, last_offset=1).letters == 2
    assert dead_letters.replay(letters.topic).letters == 4
    again = dead_letters.replay(letters.topic)
    assert (again.letters, again.done_before) == (0, 6)
    letters.write_many(2)
    assert dead_letters.replay(letters.topic).letters == 2
    assert sorted(values(read_all(letters.bootstrap, letters.retry))) == list(range(8))


def test_filters_choose_the_letters(letters: Letters, dead_letters: DeadLetters) -> None:
    now = now_ms()
    letters.write(letters.letter(exception_class="TimeoutError", last_failure_ms=now - 2 * HOUR_MS), key=b"mine")
    letters.write(letters.letter(last_failure_ms=now - HOUR_MS), key=b"mine")
    letters.write(letters.letter(last_failure_ms=now), key=b"other")
    letters.write(letters.letter(partition=1, last_failure_ms=now), key=b"other")

    def offsets(**filters: object) -> list[tuple[int, int]]:
        found = dead_letters.letters(letters.topic, **filters)  # type: ignore[arg-type]  # whatever the cases below give
        return sorted((dead.partition, dead.offset) for dead in found)

    assert offsets(error="OutOfStock") == [(0, 1), (0, 2), (1, 0)]
    assert offsets(error=["TimeoutError", "app.errors.OutOfStock"]) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert offsets(error="Stock") == []
    assert offsets(key="mine") == [(0, 0), (0, 1)]
    assert offsets(since=now - HOUR_MS, until=now) == [(0, 1)]
    assert offsets(until=datetime.fromtimestamp((now - HOUR_MS) / 1000, UTC)) == [(0, 0)]
    assert offsets(partition=0, first_offset=1) == [(0, 1), (0, 2)]
    assert offsets(last_offset=0) == [(0, 0), (1, 0)]
    done = dead_letters.replay(letters.topic, key="other", partition=1)
    assert (done.letters, done.not_fitting) == (1, 0)
    done = dead_letters.replay(letters.topic, error="TimeoutError")
    assert (done.letters, done.not_fitting) == (1, 2)


def test_a_dry_run_changes_nothing(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(3)
    would = dead_letters.replay(letters.topic, dry_run=True)
    assert (would.letters, would.targets) == (3, {letters.retry: 3})
    assert dead_letters.discard(letters.topic, dry_run=True).letters == 3
    topics = AdminClient({"bootstrap.servers": letters.bootstrap}).list_topics(timeout=10).topics
    assert letters.retry not in topics
    assert f"{letters.topic}.ledger" not in topics
    assert dead_letters.replay(letters.topic).letters == 3


def test_to_the_origin_it_goes_as_it_came(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write(letters.letter(partition=1), key=b"k", value=b"v")
    # From a partition that the origin does not have any more, if it was created again with fewer.
    letters.write(letters.letter(partition=0, offset=7)._replace(partition=1))
    done = dead_letters.replay(letters.topic, to_origin=True, first_offset=0, last_offset=0)
    assert done.targets == {letters.source: 1}
    (message,) = read_all(letters.bootstrap, letters.source)
    assert (message.partition(), message.key(), message.value()) == (1, b"k", b"v")
    assert message.headers() == [("content-type", b"text/plain")]


def test_the_other_groups_of_the_origin_are_named(letters: Letters, dead_letters: DeadLetters) -> None:
    assert dead_letters.origin_readers(letters.topic) is None
    letters.write(letters.letter())
    for group in ("email", "billing", "audit"):
        consumer = Consumer({"bootstrap.servers": letters.bootstrap, "group.id": group, "log_level": 0})
        consumer.commit(offsets=[TopicPartition(letters.source, 0, 0)], asynchronous=False)
        consumer.close()
    readers = dead_letters.origin_readers(letters.topic)
    assert readers == (letters.source, "email", ("audit", "billing"))


def test_a_letter_that_its_target_refuses_names_the_limit(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write(letters.letter(), value=secrets.token_bytes(5000))
    with Admin(letters.bootstrap) as admin:
        admin.alter_topic(letters.source, max_message_bytes=1000)
    limit = rf"max\.message\.bytes of topic {letters.source} \(1,000\)"
    with pytest.raises(MessageTooLarge, match=f"0:0 cannot be replayed: .*{limit}"):
        dead_letters.replay(letters.topic, to_origin=True)


def test_an_origin_that_is_gone(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write(letters.letter())
    admin = AdminClient({"bootstrap.servers": letters.bootstrap})
    admin.delete_topics([letters.source])[letters.source].result()
    wait_until(lambda: letters.source not in admin.list_topics(timeout=10).topics, "the topic is gone")
    with pytest.raises(UnknownTopic, match=f"came from {letters.source}, which no longer exists at .*: create it, or replay"):
        dead_letters.replay(letters.topic, to_origin=True)
    assert dead_letters.replay(letters.topic).letters == 1


def test_what_was_discarded_is_neither_counted_nor_replayed(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(5)
    assert dead_letters.discard(letters.topic, partition=1, reason="test data").letters == 2
    assert [depth.letters for depth in dead_letters.depth(letters.topic)] == [3]
    assert sum(count.letters for count in dead_letters.list(letters.topic)) == 3
    mark = dead_letters.show(letters.topic, 1, 0).mark
    assert mark is not None
    assert (mark.kind, mark.reason) == ("discarded", "test data")
    done = dead_letters.replay(letters.topic)
    assert (done.letters, done.done_before) == (3, 2)
    assert sorted(values(read_all(letters.bootstrap, letters.retry))) == [0, 2, 4]


def test_letters_without_a_story_of_this_topic_are_not_replayed(letters: Letters, dead_letters: DeadLetters) -> None:
    """Who may write to a dead-letter topic must not thereby choose a topic for the one who replays."""
    letters.write(letters.letter())
    letters.write(letters.letter(topic="payments"), letters.letter(group="another"))
    letters.write(letters.letter()._replace(exception_class=""), headers=[("tidelog.group", b"")])
    producer_headers = letters.letter().to_headers()
    stranger = [(name, value) for name, value in producer_headers if name != "tidelog.group"]
    letters.write(Stranger(stranger))  # type: ignore[arg-type]  # as a letter, but with headers that tell no story
    assert NO_STORY in {count.error for count in dead_letters.list(letters.topic)}
    done = dead_letters.replay(letters.topic)
    assert (done.letters, done.foreign) == (2, 3)
    assert [depth.letters for depth in dead_letters.depth(letters.topic)] == [3]
    assert dead_letters.discard(letters.topic).letters == 3


class Stranger:
    partition = 0
    offset = 99

    def __init__(self, headers: list[tuple[str, bytes | None]]) -> None:
        self._headers = headers

    def to_headers(self, _original: object) -> list[tuple[str, bytes | None]]:
        return self._headers


def test_depth_counts_no_marks_of_transactions(letters: Letters, dead_letters: DeadLetters) -> None:
    for _ in range(3):
        letters.write(letters.letter(), config={"transactional.id": f"worker-{secrets.token_hex(4)}"})
    (exact,) = dead_letters.depth(letters.topic)
    (estimate,) = dead_letters.depth(letters.topic, estimate=True)
    assert (exact.letters, exact.is_estimate) == (3, False)
    assert exact.oldest_ms is not None
    assert now_ms() - 60_000 < exact.oldest_ms <= now_ms()
    assert (estimate.letters, estimate.is_estimate, estimate.oldest_ms) == (6, True, None)
    assert dead_letters.replay(letters.topic).letters == 3
    assert [depth.letters for depth in dead_letters.depth(letters.topic)] == [0]
    assert dead_letters.replay(letters.topic).letters == 0


def test_what_was_aborted_is_neither_a_letter_nor_a_mark(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(2)
    dead_letters.discard(letters.topic, partition=1)
    producer = Producer({"bootstrap.servers": letters.bootstrap, "transactional.id": secrets.token_hex(4), "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(letters.topic, b"9", headers=letters.letter().to_headers(), partition=0)
    (mark,) = read_all(letters.bootstrap, f"{letters.topic}.ledger")
    producer.produce(f"{letters.topic}.ledger", mark.value(), key=mark.key().replace(b",1,0]", b",0,0]"))
    producer.flush()
    producer.abort_transaction()
    assert [depth.letters for depth in dead_letters.depth(letters.topic)] == [1]
    assert dead_letters.replay(letters.topic).letters == 1
    assert values(read_all(letters.bootstrap, letters.retry)) == [0]


def test_a_topic_made_again_has_no_old_marks(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(4)
    assert dead_letters.replay(letters.topic).letters == 4
    admin = AdminClient({"bootstrap.servers": letters.bootstrap})
    admin.delete_topics([letters.topic])[letters.topic].result()
    wait_until(lambda: letters.topic not in admin.list_topics(timeout=10).topics, "the topic is gone")
    create_topic(letters.bootstrap, letters.topic, partitions=2)
    letters.write_many(3)
    assert [depth.letters for depth in dead_letters.depth(letters.topic)] == [3]
    assert dead_letters.replay(letters.topic).letters == 3
    keys = {message.key(): message.value() for message in read_all(letters.bootstrap, f"{letters.topic}.ledger")}
    assert sum(value is None for value in keys.values()) == 4
    assert sum(value is not None for value in keys.values()) == 3


def test_marks_of_deleted_letters_get_tombstones(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(6)
    assert dead_letters.replay(letters.topic).letters == 6
    admin = AdminClient({"bootstrap.servers": letters.bootstrap})
    place = TopicPartition(letters.topic, 0, 2)
    admin.delete_records([place])[place].result()
    assert dead_letters.replay(letters.topic).letters == 0
    tombstones = [m.key() for m in read_all(letters.bootstrap, f"{letters.topic}.ledger") if m.value() is None]
    assert len(tombstones) == 2
    assert {key.rpartition(b",")[2] for key in tombstones} == {b"0]", b"1]"}
    assert dead_letters.replay(letters.topic).done_before == 4
    assert len([m for m in read_all(letters.bootstrap, f"{letters.topic}.ledger") if m.value() is None]) == 2


def test_the_rate_is_kept(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(9)
    started = time.monotonic()
    assert dead_letters.replay(letters.topic, rate=4).letters == 9
    # Two batches of four go before the last one: two seconds.
    assert time.monotonic() - started >= 2.0


def test_the_asyncio_twin(letters: Letters, dead_letters: DeadLetters) -> None:
    letters.write_many(4)

    async def use() -> None:
        twin = AsyncDeadLetters(letters.bootstrap)
        told: list[Progress] = []
        assert letters.topic in await twin.topics()
        assert [count.letters for count in await twin.list(letters.topic)] == [4]
        assert (await twin.show(letters.topic, 0, 0)).mark is None
        assert (await twin.origin_readers(letters.topic)) == (letters.source, "email", ())
        assert (await twin.discard(letters.topic, last_offset=0)).letters == 2
        assert (await twin.replay(letters.topic, progress=told.append)).letters == 2
        await asyncio.sleep(0)
        assert told[-1].letters == 2
        assert [depth.letters for depth in await twin.depth(letters.topic)] == [0]

    asyncio.run(use())


def test_topics_that_are_not_there(kafka: ToolkitBroker, dead_letters: DeadLetters) -> None:
    with pytest.raises(UnknownTopic, match=r"there is no topic nowhere\.email\.dlq at .*tidelog dlq list"):
        dead_letters.replay("nowhere.email.dlq")
    with pytest.raises(InvalidArgument, match=r"orders is not a dead-letter topic: they are called TOPIC\.GROUP\.dlq"):
        dead_letters.depth("orders")


def test_no_broker_is_told_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "wait_for_broker", lambda *client: wait_for_broker(client[0], client[1], client[2], 0.5))
    with pytest.raises(BrokerUnavailable, match=r"no broker answers at 127\.0\.0\.1:1 .* check the address"):
        DeadLetters("127.0.0.1:1").topics()
