"""``Queue.send`` with a delay or a time to live, on a real broker; and what it says where that is not possible."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.client.queue.working import new_queue, receive, values
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.asyncio_queue import AsyncJob, AsyncQueue
from tidelog.client.errors import InvalidArgument, NotSupported
from tidelog.client.queue import Queue
from tidelog.client.queue.schedule import QUEUE_ENABLE, MessageTimes, QueueTopic

# The machine that runs this may be busy with other things.
LATE_SECONDS_MAX = 30.0


@pytest.fixture
def name(kafka: ToolkitBroker) -> str:
    return create_topic(kafka.bootstrap, new_queue(kafka.bootstrap) + "-later", config={QUEUE_ENABLE: "true"})


@pytest.mark.tidelog_only
def test_a_delayed_job_comes_when_it_is_due_and_stops_none(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name) as queue:
        began = time.time()
        queue.send("at", at=datetime.now(UTC) + timedelta(seconds=2)).result()
        queue.send("delay", delay=1, key="k", headers={"trace": "abc"}).result()
        queue.send("now").result()
        (job,) = receive(queue, 1)
        assert job.text() == "now"
        job.ack()
        # On a busy machine both may be due when the first is asked for, and then the one that was sent first comes first.
        seconds = {"delay": 1, "at": 2}
        while seconds:
            (job,) = receive(queue, 1)
            due = seconds.pop(job.text() or "")
            assert due <= time.time() - began < due + LATE_SECONDS_MAX
            assert job.deliveries == 1
            job.ack()


@pytest.mark.tidelog_only
def test_a_job_that_nobody_receives_in_time_is_never_handed_out(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name) as queue:
        queue.send("gone", ttl=0.05).result()
        queue.send("kept", ttl=3_600).result()
        time.sleep(0.1)  # Its life is over: there is nothing else to wait for.
        assert values(receive(queue, 1)) == ["kept"]
        assert queue.receive(wait=0.2) == []


@pytest.mark.tidelog_only
def test_an_asyncio_queue_delays_too(kafka: ToolkitBroker, name: str) -> None:
    async def run() -> None:
        async with AsyncQueue(kafka.bootstrap, name) as queue:
            await queue.send("later", delay=600, ttl=1_200)
            await queue.send("now")
            jobs: list[AsyncJob] = []
            deadline = time.monotonic() + LATE_SECONDS_MAX
            while not jobs and time.monotonic() < deadline:
                jobs = await queue.receive(wait=1)
            assert [job.text() for job in jobs] == ["now"]
            await jobs[0].ack()

    asyncio.run(run())


@pytest.mark.tidelog_only
def test_an_ordinary_topic_says_how_to_make_it_a_queue(kafka: ToolkitBroker) -> None:
    plain = new_queue(kafka.bootstrap)
    with Queue(kafka.bootstrap, plain) as queue:
        with pytest.raises(NotSupported, match=f"tidelog queues create {plain} --adopt"):
            queue.send("later", delay=1)
        with pytest.raises(NotSupported):
            queue.send("soon", ttl=1)
        queue.send("now").result()


@pytest.mark.tidelog_only
def test_a_delay_beyond_the_retention_is_refused(kafka: ToolkitBroker) -> None:
    config = {QUEUE_ENABLE: "true", "retention.ms": "3600000"}
    name = create_topic(kafka.bootstrap, new_queue(kafka.bootstrap) + "-short", config=config)
    with Queue(kafka.bootstrap, name) as queue:
        with pytest.raises(InvalidArgument, match="expected less than 3600 seconds"):
            queue.send("never", delay=3_601)
        queue.send("later", delay=3_500).result()


class _KafkaAnswer:
    """What Apache Kafka says of a topic: all of its own settings, and none of ours."""

    def patiently(self, ask: Any) -> Any:
        return ask()

    def request_any(self, *_: Any) -> Any:
        setting = type("Setting", (), {"name": "retention.ms", "value": "604800000"})
        topic = type("Topic", (), {"error_code": 0, "error_message": None, "configs": (setting,)})
        return type("Answer", (), {"results": (topic,)})


def test_on_apache_kafka_the_error_says_why() -> None:
    brokers: Any = _KafkaAnswer()
    with pytest.raises(NotSupported, match=f"delay=5 needs Tidelog. These brokers do not know the topic setting {QUEUE_ENABLE}"):
        QueueTopic.find(brokers, "jobs", "delay=5")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"delay": -1}, "delay=-1: expected a number of seconds from 0 to 316224000"),
        ({"delay": float("nan")}, "delay=nan: expected"),
        ({"delay": True}, "delay=True: expected"),
        ({"ttl": 0}, "ttl=0: expected a number of seconds from more than 0 to"),
        ({"delay": 5, "at": 1}, "contradict each other"),
        ({"at": datetime(2030, 1, 1)}, "a datetime with a zone"),
    ],
)
def test_times_out_of_range_are_refused_with_the_range(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        MessageTimes.of(**{"delay": 0.0, "at": None, "ttl": None, **arguments})


def test_headers_are_added_to_those_of_the_application() -> None:
    times = MessageTimes.of(0.0, 1_900_000_000_123, None)
    assert times is not None
    assert times.added_to({"a": "b"}) == times.added_to([("a", "b")]) == [("a", "b"), ("tidelog.due", "1900000000123")]
    assert MessageTimes.of(0.0, None, None) is None
    alive = MessageTimes.of(0.0, 1_900_000_000_123, 5)
    assert alive is not None
    assert alive.expires_ms == 1_900_000_005_123, "the life of a message begins when it is due"


@pytest.mark.tidelog_only
def test_jobs_of_one_key_come_in_their_order_one_at_a_time(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name, order="key") as one, Queue(kafka.bootstrap, name) as other:
        for number in range(6):
            one.send(f"{number}", key="ab"[number % 2])
        one.flush()
        seen: dict[bytes | None, list[str | None]] = {b"a": [], b"b": []}
        for _ in range(3):
            jobs = receive(one, 2)
            assert {job.key for job in jobs} == {b"a", b"b"}
            assert other.receive() == []
            for job in jobs:
                seen[job.key].append(job.text())
            one.ack(jobs)
        assert seen == {b"a": ["0", "2", "4"], b"b": ["1", "3", "5"]}


@pytest.mark.tidelog_only
def test_order_by_key_needs_a_queue_topic(kafka: ToolkitBroker) -> None:
    plain = new_queue(kafka.bootstrap)
    with (
        Queue(kafka.bootstrap, plain, order="key") as queue,
        pytest.raises(NotSupported, match="order='key' needs a queue topic"),
    ):
        queue.receive()
    with pytest.raises(InvalidArgument, match="order='size': expected one of none, key"):
        Queue(kafka.bootstrap, plain, order="size")
