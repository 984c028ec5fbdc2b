"""Workers on a real broker: every message handled, in order, once where that is promised."""

import asyncio
import threading
import time
from collections import Counter

import pytest

from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, running
from tidelog.client.message import Message
from tidelog.client.tracing import current_traceparent
from tidelog.worker import Backoff, SqliteDeduplicator, Worker
from tidelog.worker.options import Order

ORDERS: tuple[Order, ...] = ("partition", "key", "none")


@pytest.fixture
def place(kafka: ToolkitBroker) -> Place:
    return Place(kafka.bootstrap)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_async", [False, True])
def test_every_message_is_handled_once_and_committed(place: Place, order: Order, is_async: bool) -> None:
    place.send(range(500), key=lambda value: f"key-{value % 7}")
    seen: list[int] = []
    worker = place.worker(order=order)
    if is_async:

        @worker.handler
        async def handle_async(message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(int(message.value or b""))

    else:

        @worker.handler
        def handle(message: Message) -> None:
            seen.append(int(message.value or b""))

    with running(worker) as run:
        run.until(lambda: len(seen) >= 500, "all are handled")
    assert sorted(seen) == list(range(500))
    assert sum(offset for offset, _ in place.committed().values()) == 500
    assert run.result is True
    if order != "none":
        by_key = {number: [value for value in seen if value % 7 == number] for number in range(7)}
        assert all(values == sorted(values) for values in by_key.values())


def test_with_order_by_key_later_messages_wait_behind_a_failing_one(place: Place) -> None:
    place.send([f"{key}-{number}" for number in range(5) for key in "abc"], key=lambda value: value[0])
    seen: list[str] = []
    failures = Counter[str]()
    # Longer than it takes to come to the end of the others.
    worker = place.worker(order="key", retries=3, backoff=Backoff(base=0.3, cap=0.6))

    @worker.handler
    def handle(message: Message) -> None:
        text = message.text() or ""
        if text in ("a-1", "a-3", "b-0") and failures[text] < 2:
            failures[text] += 1
            raise OSError("not yet")
        seen.append(text)

    with running(worker) as run:
        run.until(lambda: len(seen) >= 15, "all are handled")
        run.until(lambda: worker.metrics().in_flight == 0, "all is finished")
    for key in "abc":
        assert [text for text in seen if text[0] == key] == [f"{key}-{number}" for number in range(5)]
    assert seen.index("c-4") < seen.index("a-1"), "other keys do not wait"
    assert worker.metrics().waited > 0


def test_blocked_keys_are_known_after_a_restart_before_the_source_is_read(place: Place) -> None:
    place.send(["a-0", "b-0"], key=lambda value: value[0])
    is_broken = True
    seen: list[str] = []

    def make() -> Worker:
        worker = place.worker(order="key", retries=5)

        @worker.handler
        def handle(message: Message) -> None:
            text = message.text() or ""
            if is_broken and text[0] == "a":
                raise OSError("not yet")
            seen.append(text)

        return worker

    worker = make()
    with running(worker) as run:
        run.until(lambda: worker.metrics().retried >= 1 and seen == ["b-0"], "one waits")
    place.send(["a-1", "a-2", "b-1"], key=lambda value: value[0])
    is_broken = False
    second = make()
    with running(second) as run:
        run.until(lambda: len(seen) >= 5, "all are handled")
    assert [text for text in seen if text[0] == "a"] == ["a-0", "a-1", "a-2"]


def test_what_was_finished_above_the_commit_is_not_repeated(kafka: ToolkitBroker) -> None:
    place = Place(kafka.bootstrap, partitions=1)
    place.send(range(200))
    release = threading.Event()
    seen: list[int] = []

    def make(is_second: bool) -> Worker:
        worker = place.worker(order="none", drain_timeout=0.3)

        @worker.handler
        def handle(message: Message) -> None:
            value = int(message.value or b"")
            if value in (0, 50) and not is_second:
                release.wait(30)
            seen.append(value)

        return worker

    with running(make(False)) as run:
        run.until(lambda: len(seen) == 198, "all but two are handled")
        run.until(lambda: place.committed()[0][0] == 0 and "tidelog:1:" in place.committed()[0][1], "the rest is in the metadata")
    assert run.result is False, "two were still under way"
    second = make(True)
    seen.clear()
    with running(second) as run:
        run.until(lambda: place.committed()[0][0] == 200, "all is committed")
    release.set()
    assert sorted(set(seen)) == [0, 50]
    assert second.metrics().skipped == 198


def test_exactly_once_writes_one_letter_in_the_transaction_of_the_offset(place: Place) -> None:
    place.send(range(20), key=str)
    worker = place.worker(order="key", retries=1, exactly_once=True)

    @worker.handler
    def handle(message: Message) -> None:
        if int(message.value or b"") % 5 == 0:
            raise OSError("never")

    with running(worker) as run:
        run.until(lambda: worker.metrics().dead == 4, "four are dead")
        run.until(lambda: len(place.read(place.dead_letters)) == 4, "they are committed")
    assert sorted(int(message.value or b"") for message in place.read(place.dead_letters)) == [0, 5, 10, 15]
    assert len(place.read(place.retries(0))) == 4
    assert sum(offset for offset, _ in place.committed().values()) == 20


def test_several_handlers_by_topic(kafka: ToolkitBroker) -> None:
    one, other = Place(kafka.bootstrap), Place(kafka.bootstrap)
    one.send(["x"] * 5)
    other.send(["y"] * 5)
    worker = one.worker(topics=[one.topic, other.topic])
    seen: list[tuple[str, str]] = []

    @worker.handler(topic=one.topic)
    def first(message: Message) -> None:
        seen.append(("first", message.text() or ""))

    @worker.handler
    async def rest(message: Message) -> None:
        seen.append(("rest", message.text() or ""))

    with running(worker) as run:
        run.until(lambda: len(seen) == 10, "all are handled")
    assert Counter(seen) == {("first", "x"): 5, ("rest", "y"): 5}


def test_the_trace_goes_through_the_handler_and_the_letters(place: Place) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    place.send(["a"], headers=[("traceparent", traceparent.encode())])
    seen: list[str | None] = []
    worker = place.worker(retries=1)

    @worker.handler
    def handle(_: Message) -> None:
        seen.append(current_traceparent())
        raise OSError("no")

    with running(worker) as run:
        run.until(lambda: worker.metrics().dead == 1, "it is dead")
    assert seen == [traceparent, traceparent]
    assert place.read(place.dead_letters)[0].headers["traceparent"] == traceparent.encode()


def test_deduplication_handles_a_message_id_once(place: Place, tmp_path: object) -> None:
    for value, message_id in (("a", b"1"), ("a", b"1"), ("b", b"2")):
        place.send([value], key=lambda _: "one partition", headers=[("message-id", message_id)])
    seen: list[str] = []
    worker = place.worker(deduplicate=SqliteDeduplicator(f"{tmp_path}/seen.db"), order="none", concurrency=1)

    @worker.handler
    def handle(message: Message) -> None:
        seen.append(message.text() or "")
        if len(seen) == 1:
            raise OSError("once")

    with running(worker) as run:
        run.until(lambda: worker.metrics().handled == 2 and worker.metrics().duplicates == 1, "all are done with")
    # Tried, failed, and handled once.
    assert Counter(seen) == {"a": 2, "b": 1}


def test_two_workers_share_the_partitions_and_nothing_is_lost_when_one_leaves(kafka: ToolkitBroker) -> None:
    place = Place(kafka.bootstrap, partitions=4)
    seen: list[int] = []

    def make() -> Worker:
        worker = place.worker(order="key")

        @worker.handler
        def handle(message: Message) -> None:
            time.sleep(0.001)
            seen.append(int(message.value or b""))

        return worker

    first, second = make(), make()
    with running(first) as run:
        run.until(lambda: first.is_joined, "the first is there")
        place.send(range(500), key=lambda value: str(value % 50))
        with running(second) as other:
            other.until(lambda: second.is_joined, "the second is there")
            place.send(range(500, 1000), key=lambda value: str(value % 50))
            other.until(lambda: second.metrics().handled > 20, "the second works")
        place.send(range(1000, 1500), key=lambda value: str(value % 50))
        run.until(lambda: len(set(seen)) == 1500, "all are handled")
    # Drained before they were given up: nothing is handled twice.
    assert len(seen) == 1500
    for key in range(50):
        values = [value for value in seen if value % 50 == key]
        assert values == sorted(values)
