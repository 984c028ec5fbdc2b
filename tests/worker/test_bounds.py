"""What is bounded: memory after a restart, messages that wait for their key, metadata of commits."""

import threading
import time

import pytest

from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, running
from tidelog.client.message import Message
from tidelog.testing import Broker
from tidelog.worker import Backoff
from tidelog.worker.session import READ_BYTES_MAX


def test_what_is_read_ahead_is_bounded_also_after_a_restart(kafka: ToolkitBroker) -> None:
    """A backlog that would not fit, and a handler that hangs: twice, as a worker that died of memory would come back."""
    size, count, prefetch_bytes = 20_000, 1_500, 2 << 20
    place = Place(kafka.bootstrap, partitions=1)
    place.send([bytes(size)] * count)
    for _ in range(2):
        release = threading.Event()
        worker = place.worker(order="none", concurrency=2, prefetch_bytes=prefetch_bytes, drain_timeout=0.1, retries=0)

        @worker.handler
        def handle(_: Message, release: threading.Event = release) -> None:
            release.wait(60)

        with running(worker) as run:
            run.until(lambda worker=worker: worker.metrics().in_flight > 50, "it reads")  # type: ignore[misc]  # a loop's variable
            highest = 0
            end = time.monotonic() + 0.7
            # It goes on to read for as long as it would.
            while time.monotonic() < end:
                highest = max(highest, worker.metrics().in_flight)
                time.sleep(0.02)
        release.set()
        assert highest * size <= prefetch_bytes + READ_BYTES_MAX
        assert highest < count / 4


def test_more_than_may_wait_in_memory_is_written_behind_the_letter_and_keeps_its_order(kafka: ToolkitBroker) -> None:
    place = Place(kafka.bootstrap, partitions=1)
    count = 300
    place.send(range(count), key=lambda _: "hot")
    place.send(["other"], key=lambda _: "other")
    seen: list[str] = []
    # Longer than it takes to come to the other key.
    worker = place.worker(order="key", retries=3, prefetch_messages=1, backoff=Backoff(base=0.5, cap=2.0))

    @worker.handler
    def handle(message: Message) -> None:
        text = message.text() or ""
        if text == "0" and int(message.headers.get("tidelog.attempts") or b"0") < 3:
            raise OSError("not yet")
        seen.append(text)

    with running(worker) as run:
        run.until(lambda: len(seen) == count + 1, "all are handled")
    assert [text for text in seen if text != "other"] == [str(number) for number in range(count)]
    assert seen[0] == "other", "it does not wait for the hot key"
    written = sum(len(place.read(place.retries(level))) for level in range(3))
    # Some behind each letter of the first, never more than once per level; and no copies.
    assert 150 <= written <= 3 * count
    assert len(seen) == count + 1


@pytest.mark.tidelog_only
def test_a_broker_that_allows_less_metadata_gets_less() -> None:
    with Broker(configs={"offset.metadata.max.bytes": 30}) as broker:
        place = Place(broker.bootstrap_servers, partitions=1)
        first, release = threading.Event(), threading.Event()
        handled: list[int] = []
        worker = place.worker(order="none", drain_timeout=5, concurrency=40, offset_metadata_bytes=100)

        @worker.handler
        def handle(message: Message) -> None:
            number = int(message.value or b"")
            if number == 1:
                first.wait(30)
            elif number % 2 and number < 60:
                release.wait(30)
            handled.append(number)

        place.send(range(100))
        with running(worker) as run:
            run.until(lambda: len(handled) == 70, "all but the slow ones are handled")
            first.set()
            # Dozens of runs are finished above it.
            run.until(lambda: place.committed()[0][0] == 3, "a commit is taken")
            assert len(place.committed()[0][1]) <= 30
            release.set()
            run.until(lambda: place.committed()[0][0] == 100, "all is committed")

        # One whose first commit is its last.
        place = Place(broker.bootstrap_servers, partitions=1)
        worker = place.worker(order="none", drain_timeout=0.1, concurrency=40, commit_interval=600)
        release.clear()
        handled.clear()
        worker.handler(handle)
        place.send(range(100))
        with running(worker) as run:
            run.until(lambda: len(handled) == 71, "all but the slow ones are handled")
        assert place.committed()[0] == (3, "")
        release.set()
