"""A queue topic on three brokers: delayed messages survive the death of their leader, and none comes early."""

import time

from tests.compatibility.cluster.test_share_consumer import REPLICATED
from tidelog.client.admin import Admin
from tidelog.client.errors import LockLost
from tidelog.client.queue import Queue
from tidelog.testing import Cluster

NAME = "jobs"
MESSAGES = 60
DELAY_SECONDS = 8.0
SECONDS_MAX = 120.0


def test_delayed_messages_survive_the_death_of_their_leader() -> None:
    with Cluster(3, configs=REPLICATED) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(NAME, partitions=1, replication_factor=3, tidelog_queue_enable="true")
            leader = admin.describe_topic(NAME).partitions[0].leader
        with Queue(cluster.bootstrap_servers, NAME) as queue:
            due: dict[str, float] = {}
            sent = []
            for number in range(MESSAGES):
                delay = DELAY_SECONDS if number % 2 else 0.0
                due[f"{number}"] = time.time() + delay
                sent.append(queue.send(f"{number}", delay=delay))
            for delivery in sent:
                delivery.result(SECONDS_MAX)
            settled: set[str] = set()
            is_killed = False
            deadline = time.monotonic() + SECONDS_MAX
            # A lost connection leaves open what was acknowledged over it. What was not comes again.
            unknown: set[str] = set()
            while len(settled | unknown) < MESSAGES:
                assert time.monotonic() < deadline, f"{len(settled)} of {MESSAGES}; {cluster.output()}"
                jobs = queue.receive(5, wait=1)
                for job in jobs:
                    text = job.text() or ""
                    assert text not in settled, "acknowledged, and delivered again"
                    assert time.time() >= due[text], "a message is early"
                texts = {job.text() or "" for job in jobs}
                try:
                    queue.ack(jobs)
                except LockLost:
                    unknown |= texts
                    continue
                settled |= texts
                if len(settled) >= 10 and not is_killed:
                    cluster.kill(leader)
                    is_killed = True
        events = [event for node in cluster.nodes.values() for event in node.events]
        assert [event for event in events if event["event"] in ("unexpected_error", "failed")] == []
