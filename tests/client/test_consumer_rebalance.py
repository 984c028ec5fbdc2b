"""Partitions that come and go: who is told what, what is committed, and where reading goes on."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.client.consuming import QUICK, fill, filled_topic, new_group, read, read_on, read_together, texts, until
from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.consumer import Consumer
from tidelog.client.errors import GroupError, InvalidArgument, TimedOut
from tidelog.client.message import Message
from tidelog.client.topic_partition import TopicPartition
from tidelog.testing import Broker

# Processing longer than this loses the group, unless the place is kept.
POLL_INTERVAL_MS = 3_000
SHORT = {**QUICK, "session.timeout.ms": 2_900, "max.poll.interval.ms": POLL_INTERVAL_MS}


class Story(list[tuple[str, list[TopicPartition]]]):
    """What the callbacks were told."""

    def callbacks(self) -> dict[str, Any]:
        return {
            f"on_{what}": lambda partitions, what=what: self.append((what, partitions))
            for what in ("assigned", "revoked", "lost")
        }

    def said(self, what: str) -> list[TopicPartition]:
        return [partition for said, partitions in self if said == what for partition in partitions]


@pytest.fixture(scope="module")
def quick_kafka() -> Iterator[ToolkitBroker]:
    """One that lets members have short sessions."""
    configs = {"group.min.session.timeout.ms": 500, "group.consumer.heartbeat.interval.ms": 5000}
    with Broker(configs=configs) as broker:
        yield ToolkitBroker(broker.bootstrap_servers)


def member(kafka: ToolkitBroker, group: str, topic: str, **arguments: Any) -> Consumer:
    config = QUICK if arguments.get("protocol") != "consumer" else None
    return Consumer(kafka.bootstrap, group=group, topics=[topic], **{"config": config, **arguments})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_are_shared_and_only_what_moves_is_revoked(kafka: ToolkitBroker, protocol: str) -> None:
    topic, group = filled_topic(kafka, 30, partitions=2), new_group()
    story, other_story = Story(), Story()
    with member(kafka, group, topic, protocol=protocol, **story.callbacks()) as one:
        read(one, 60)
        assert sorted(story.said("assigned")) == [(topic, 0), (topic, 1)]
        one.commit()
        with member(kafka, group, topic, protocol=protocol, **other_story.callbacks()) as two:
            read_together([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 1)
            # Cooperative: the other partition went on being read.
            assert story.said("revoked") == other_story.said("assigned") == two.assignment()
            assert story.said("lost") == []
            for partition in range(2):
                fill(kafka.bootstrap, topic, ["new"], partition)
            found: dict[Consumer, list[Message]] = {one: [], two: []}
            for consumer in (one, two):
                read_on(consumer, found[consumer], 1)
                assert [(message.topic, message.partition) for message in found[consumer]] == consumer.assignment()
        assert other_story.said("revoked") == other_story.said("assigned")


def test_on_revoked_may_commit(kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(kafka), new_group()
    consumer: Consumer = member(kafka, group, topic, on_revoked=lambda _: consumer.commit())
    read(consumer, 6)
    consumer.close()
    with member(kafka, group, topic) as consumer:
        assert texts(read(consumer, 1)) == ["6"]


def test_a_callback_that_fails_is_raised_and_loses_no_message(kafka: ToolkitBroker) -> None:
    def fail(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    topic = filled_topic(kafka)
    consumer = member(kafka, new_group(), topic, on_assigned=fail, on_revoked=fail)
    with pytest.raises(ZeroDivisionError):
        until(lambda: consumer.poll(timeout=0.1))
    assert [message.offset for message in read(consumer, 10)] == list(range(10))
    with pytest.raises(ZeroDivisionError):
        consumer.close()


def test_no_poll_within_a_callback(kafka: ToolkitBroker) -> None:
    consumer: Consumer = member(kafka, new_group(), filled_topic(kafka), on_assigned=lambda _: consumer.poll())
    with consumer, pytest.raises(InvalidArgument, match="within a callback"):
        until(lambda: consumer.poll(timeout=0.1))


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_partition_that_was_paused_goes_and_comes_back_and_is_read(kafka: ToolkitBroker, assignor: str) -> None:
    topic, group = filled_topic(kafka, 1, partitions=2), new_group()
    with member(kafka, group, topic, assignor=assignor) as one:
        read(one, 2)
        one.commit()
        one.pause()
        with member(kafka, group, topic, assignor=assignor) as two:
            read_together([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 1)
        read_together([one], lambda: len(one.assignment()) == 2)
        one.resume(one.paused())
        for partition in range(2):
            fill(kafka.bootstrap, topic, ["more"], partition)
        assert {message.partition for message in read(one, 2)} == {0, 1}


def test_closing_within_a_callback_is_refused_and_not_ignored(kafka: ToolkitBroker) -> None:
    topic = filled_topic(kafka, 1)
    said: list[str] = []

    def on_assigned(_: list[TopicPartition]) -> None:
        try:
            one.close()
        except InvalidArgument as error:
            said.append(str(error))

    with member(kafka, new_group(), topic, on_assigned=on_assigned) as one:
        read(one, 1)
        assert one.poll(timeout=0) == []
    assert said == ["close was called within a callback of a poll: return from it first"]


def test_seek_and_pause_when_assigned(kafka: ToolkitBroker) -> None:
    """Not one message from where the group stood."""
    topic, group = filled_topic(kafka, 50, partitions=2), new_group()

    def assigned(partitions: list[TopicPartition]) -> None:
        consumer.seek(topic, 0, offset=45)
        consumer.pause([(topic, 1)])

    with member(kafka, group, topic, on_assigned=assigned) as consumer:
        assert texts(read(consumer, 5)) == ["45", "46", "47", "48", "49"]
        assert consumer.poll(timeout=0.2) == []
        consumer.resume()
        assert {message.partition for message in read(consumer, 50)} == {1}


def test_seeks_while_the_group_rebalances(kafka: ToolkitBroker) -> None:
    """A seek is done before the next message of its partition, or refused with a type; never half."""
    topic, group = filled_topic(kafka, 40, partitions=2), new_group()
    with member(kafka, group, topic) as one:
        read(one, 80)
        for _ in range(3):
            with member(kafka, group, topic) as two:
                for step in range(40):
                    target = step
                    try:
                        one.seek(topic, 0, offset=target)
                    except GroupError:
                        target = -1
                    two.poll(timeout=0.01)
                    messages = [message for message in one.poll(5, timeout=0.05) if message.partition == 0]
                    if messages and target >= 0:
                        assert messages[0].offset == target
                    if len(two.assignment()) == 1 and step > 10:
                        break
            read_together([one], lambda: len(one.assignment()) == 2)


class RefusingSeeks:
    """confluent-kafka's consumer while it is still starting with a partition."""

    def __init__(self, raw: Any, times: int) -> None:
        self._raw = raw
        self.times = times

    def seek(self, target: Any) -> None:
        if self.times > 0:
            self.times -= 1
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._raw.seek(target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def test_a_seek_that_librdkafka_does_not_take_yet_is_done_later(kafka: ToolkitBroker) -> None:
    """And nothing from the old place is handed out until then."""
    topic = filled_topic(kafka)
    with member(kafka, new_group(), topic) as consumer:
        read(consumer, 5)
        consumer._raw.handle = refusing = RefusingSeeks(consumer.handle, 3)
        consumer.seek(topic, 0, offset=2)
        for _ in range(2):
            assert consumer.position(topic, 0) == 2
            assert consumer.poll(timeout=0) == []
        assert texts(read(consumer, 8)) == ["2", "3", "4", "5", "6", "7", "8", "9"]
        assert refusing.times == 0


@pytest.mark.tidelog_only
def test_lost_is_not_revoked(quick_kafka: ToolkitBroker) -> None:
    """Without the idle poller the member is thrown out while it works. It learns of it by on_lost, and nothing of it is
    committed."""
    topic, group, story = filled_topic(quick_kafka), new_group(), Story()
    with member(quick_kafka, group, topic, config=SHORT, processing_timeout=0, **story.callbacks()) as slow:
        read(slow, 5)
        with member(quick_kafka, group, topic, config=QUICK) as other:
            # It takes over from the beginning: nothing was committed.
            assert texts(read(other, 10))[0] == "0"
            other.commit()
            assert slow.commit() == {}
            assert story.said("lost") == [(topic, 0)]
            assert story.said("revoked") == []
            assert other.committed() == {TopicPartition(topic, 0): 10}


@pytest.mark.tidelog_only
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_long_processing_keeps_its_place(quick_kafka: ToolkitBroker, protocol: str) -> None:
    topic, group, story = filled_topic(quick_kafka, 20), new_group(), Story()
    config = SHORT if protocol == "classic" else {"max.poll.interval.ms": POLL_INTERVAL_MS}
    with member(quick_kafka, group, topic, config=config, protocol=protocol, **story.callbacks()) as consumer:
        read(consumer, 5)
        poller = consumer._idle_poller
        assert poller is not None
        # Three times as long as allowed.
        until(lambda: poller.polls >= 3 * 4)
        assert consumer.commit() == {TopicPartition(topic, 0): 5}
        # Each of its polls took a message, which was kept, in order.
        assert [message.offset for message in read(consumer, 15)] == list(range(5, 20))
        assert (story.said("lost"), story.said("revoked")) == ([], [])


@pytest.mark.tidelog_only
def test_a_rebalance_does_not_wait_for_long_processing(quick_kafka: ToolkitBroker) -> None:
    topic, group, story = filled_topic(quick_kafka, 20, partitions=2), new_group(), Story()
    with member(quick_kafka, group, topic, config=SHORT, **story.callbacks()) as busy:
        handed_out = read(busy, 5)
        with member(quick_kafka, group, topic) as other:
            # The busy one does not poll.
            read_together([other], lambda: len(other.assignment()) == 1)
            went = other.assignment()
            assert story.said("revoked") == went
            # What has gone is not committed, what stayed is.
            assert set(busy.commit(handed_out)) == {(one.topic, one.partition) for one in handed_out} - set(went)
            assert story.said("lost") == []


@pytest.mark.tidelog_only
def test_a_handler_that_hangs_is_given_up(quick_kafka: ToolkitBroker) -> None:
    topic, group = filled_topic(quick_kafka), new_group()
    with member(quick_kafka, group, topic, config=SHORT, processing_timeout=4.5) as stuck:
        read(stuck, 5)
        poller = stuck._idle_poller
        assert poller is not None
        with member(quick_kafka, group, topic) as other:
            assert texts(read(other, 10))[0] == "0"
        assert 0 < poller.polls < 10


def test_a_start_that_cannot_be_found_out_is_asked_again(kafka: ToolkitBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from a wrong place in the meantime."""
    topic, group = new_topic(kafka), new_group()
    for hour in range(4):
        fill(kafka.bootstrap, topic, [f"hour {hour}"], timestamp=1_700_000_000_000 + hour * 3_600_000)
    with member(kafka, group, topic, start=1_700_000_000_000 + 2 * 3_600_000) as consumer:
        answer, asked = consumer._lookup.at, []

        def fails_twice(*arguments: Any) -> dict[TopicPartition, int]:
            asked.append(arguments)
            if len(asked) <= 2:
                raise TimedOut("no answer")
            return answer(*arguments)

        monkeypatch.setattr(type(consumer._lookup), "at", lambda _, *arguments: fails_twice(*arguments))
        found: list[Message] = []
        failures = 0
        while len(found) < 2:
            try:
                found += consumer.poll(timeout=0.1)
            except TimedOut:
                failures += 1
        assert texts(found) == ["hour 2", "hour 3"]
        assert (len(asked), failures) == (3, 1)
