"""``Queue`` on three brokers, each of which leads a partition: only what is handed out is locked, and it is locked when it is."""

import secrets
import threading
import time
from collections.abc import Iterator

import pytest

from tests.client.queue.working import SECONDS_MAX, receive, values
from tests.compatibility.apache_kafka import wait_until
from tests.compatibility.cluster.test_share_consumer import REPLICATED
from tidelog.client.admin import Admin
from tidelog.client.producer import Producer
from tidelog.client.queue import Job, Queue
from tidelog.testing import Cluster

LEADERS = 3
LOCK_SECONDS = 3
LOCK_SECONDS_OF_A_GROUP = 30

pytestmark = pytest.mark.tidelog_only


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(LEADERS, configs=REPLICATED) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def name(bootstrap: str) -> str:
    topic = f"jobs-{secrets.token_hex(4)}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=LEADERS, replication_factor=3)
        assert {each.leader for each in admin.describe_topic(topic).partitions} == {1, 2, 3}
    return topic


def send_one_to_each(bootstrap: str, name: str, word: str) -> set[str]:
    with Producer(bootstrap) as producer:
        for partition in range(LEADERS):
            producer.send(name, f"{word}-{partition}", partition=partition)
    return {f"{word}-{partition}" for partition in range(LEADERS)}


def is_idle(queue: Queue) -> bool:
    """Whether no leader has a fetch of this worker that waits for jobs."""
    return not any(session.is_fetching for session in queue._sessions.values())


def test_of_several_leaders_with_jobs_only_one_is_asked(bootstrap: str, name: str) -> None:
    with Queue(bootstrap, name) as queue:
        begun = send_one_to_each(bootstrap, name, "begun")
        jobs = receive(queue, LEADERS)
        assert set(values(jobs)) == begun
        queue.ack(jobs)
        wait_until(lambda: is_idle(queue), "the fetches that still waited have ended")
        send_one_to_each(bootstrap, name, "job")
        assert len(queue.receive(1, wait=SECONDS_MAX)) == 1
    with Queue(bootstrap, name) as queue:
        jobs = receive(queue, LEADERS)
        assert sorted(job.deliveries for job in jobs) == [1, 1, 2], "a delivery was counted that nobody has seen"


def test_whatever_receive_returns_is_locked_however_long_the_last_jobs_took(bootstrap: str, name: str) -> None:
    with Queue(bootstrap, name, visibility_timeout=LOCK_SECONDS, renew=True) as queue:
        assert queue.receive() == []
        held: list[Job] = []
        waiting = threading.Thread(target=lambda: held.extend(queue.receive(1, wait=SECONDS_MAX)))
        waiting.start()
        wanted = send_one_to_each(bootstrap, name, "job")
        waiting.join()
        # The work on the first job. What came meanwhile from the other leaders must not be handed out when its lock has ended.
        time.sleep(LOCK_SECONDS * 1.1)
        held[0].ack()
        done = set(values(held))
        while done != wanted:
            for job in queue.receive(1, wait=1):
                job.ack()
                done.add(job.text() or "")


def test_jobs_that_nobody_asks_for_go_to_another_worker(bootstrap: str, name: str) -> None:
    with Queue(bootstrap, name) as busy:
        assert busy.receive() == []
        held: list[Job] = []
        waiting = threading.Thread(target=lambda: held.extend(busy.receive(1, wait=SECONDS_MAX)))
        waiting.start()
        wanted = send_one_to_each(bootstrap, name, "job")
        waiting.join()
        others = [Queue(bootstrap, name) for _ in range(LEADERS)]
        try:
            found = set(values(held))
            deadline = time.monotonic() + LOCK_SECONDS_OF_A_GROUP / 2
            while found != wanted:
                assert time.monotonic() < deadline, "the locks of a busy worker have kept jobs from idle ones"
                for other in others:
                    found |= set(values(other.receive(1, wait=0.1)))
        finally:
            for other in others:
                other.close()
