"""Retry and dead-letter topics of a worker at work: there without retries, and growing with their source."""

import pytest

from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, running
from tidelog.client.message import Message
from tidelog.deadletters import DeadLetters
from tidelog.worker import Worker
from tidelog.worker.options import Order
from tidelog.worker.retry_topics import TopicRole, roles_of

# How soon a worker sees that partitions were added.
SOON = {"topic.metadata.refresh.interval.ms": 200}


@pytest.mark.parametrize("order", ["partition", "key"])
def test_a_replayed_letter_is_handled_without_retries_and_without_a_restart(kafka: ToolkitBroker, order: Order) -> None:
    place = Place(kafka.bootstrap)
    place.send(["a", "b"], key=lambda _: "k")
    is_broken = True
    seen: list[str] = []
    worker = place.worker(retries=0, order=order)

    @worker.handler
    def handle(message: Message) -> None:
        if is_broken:
            raise OSError("not yet")
        seen.append(message.text() or "")

    with running(worker) as run:
        run.until(lambda: len(place.read(place.dead_letters)) == 2, "both are dead")
        assert worker.metrics().retried == 0
        is_broken = False
        assert DeadLetters(place.bootstrap).replay(place.dead_letters).letters == 2
        run.until(lambda: len(seen) == 2, "both are handled")
    assert seen == ["a", "b"]


@pytest.mark.parametrize(("order", "exactly_once"), [("partition", False), ("key", False), ("none", True)])
def test_retry_and_dead_letter_topics_gain_the_partitions_that_the_source_gains(
    kafka: ToolkitBroker, order: Order, exactly_once: bool
) -> None:
    place = Place(kafka.bootstrap, partitions=1)
    seen: list[str] = []
    worker = place.worker(retries=2, order=order, exactly_once=exactly_once, config=SOON)

    @worker.handler
    def handle(message: Message) -> None:
        if message.value != b"first" or "tidelog.attempts" not in message.headers:
            raise OSError("not yet")
        seen.append(message.text() or "")

    with running(worker) as run:
        # A letter goes to each topic, so that producer and consumer have seen it with one partition.
        place.send(["first", "early"], partition=0)
        run.until(lambda: seen == ["first"] and len(place.read(place.dead_letters)) == 1, "letters were written")
        place.add_partitions(3)
        place.send(["late"], partition=2)
        run.until(lambda: worker.metrics().dead == 2, "what failed in a new partition is dead")
        run.until(lambda: place.committed(place.retries(1))[2][0] > 0, "it came through both levels")
    dead = {message.value: message.partition for message in place.read(place.dead_letters)}
    assert dead == {b"early": 0, b"late": 2}
    assert [message.partition for message in place.read(place.retries(1)) if message.value == b"late"] == [2]


def test_a_key_keeps_its_order_in_two_workers_while_partitions_are_added(kafka: ToolkitBroker) -> None:
    """Ranges of topics with different counts do not meet: 1 of the source is the first's then, 1 of the retries the second's."""
    place = Place(kafka.bootstrap)
    seen: list[str] = []
    is_broken = True

    def make() -> Worker:
        worker = place.worker(order="key", retries=3, config=SOON)

        @worker.handler
        def handle(message: Message) -> None:
            if message.value == b"0" and is_broken:
                raise OSError("not yet")
            seen.append(message.text() or "")

        return worker

    first, second = make(), make()
    with running(first) as run, running(second) as other:
        run.until(lambda: first.is_joined and second.is_joined, "both are there")
        place.send(["0"], key=lambda _: "k", partition=1)
        run.until(lambda: first.metrics().retried + second.metrics().retried > 0, "it waits for another try")
        place.add_partitions(4)
        place.send(range(1, 6), key=lambda _: "k", partition=1)
        for number in range(4):
            place.send([f"other-{number}"], partition=number)
        other.until(lambda: len([text for text in seen if text.startswith("other")]) == 4, "all partitions are read")
        is_broken = False
        run.until(lambda: len(seen) == 10, "all are handled")
    assert [text for text in seen if not text.startswith("other")] == [str(number) for number in range(6)]


def test_sources_with_their_levels_and_no_others() -> None:
    existing = ["orders", "orders.email.retry.0", "orders.email.retry.7", "orders.email.dlq", "orders.other.retry.8", "returns"]
    assert roles_of(["orders", "returns"], "email", 2, existing) == {
        "orders": TopicRole("orders", -1),
        "orders.email.retry.0": TopicRole("orders", 0),
        "orders.email.retry.1": TopicRole("orders", 1),
        # The worker had more retries once: nothing stays behind there.
        "orders.email.retry.7": TopicRole("orders", 7),
        "returns": TopicRole("returns", -1),
        "returns.email.retry.0": TopicRole("returns", 0),
        "returns.email.retry.1": TopicRole("returns", 1),
    }
