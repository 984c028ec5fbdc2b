"""What three real brokers say of a queue whose partitions each have another leader, with and without workers."""

import json
import re
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.client.queue.working import receive
from tests.faults.load import COMMON, WAIT_SECONDS_MAX, wait_until
from tidelog.client.queue import Queue
from tidelog.client.queue.share_groups import ShareGroupAdmin
from tidelog.testing import Cluster

NAME = "jobs"
VICTIM = 3
CONFIGS = {
    "tidelog.metrics.listener": "127.0.0.1:0",
    "share.coordinator.state.topic.num.partitions": 3,
    "share.coordinator.state.topic.replication.factor": 3,
}


def read(cluster: Cluster, node_id: int, path: str) -> str:
    address = next(event["metrics"] for event in reversed(cluster.nodes[node_id].events) if event["event"] == "started")
    with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_SECONDS_MAX) as answer:
        return str(answer.read().decode())


def backlogs(cluster: Cluster) -> list[dict[str, Any]]:
    return [json.loads(read(cluster, node_id, f"/queues/{NAME}")) for node_id in cluster.running]


def counts(cluster: Cluster) -> list[tuple[int, int | None, int | None]]:
    return [(found["backlog"], found["acquired"], found["redelivered"]) for found in backlogs(cluster)]


def unavailable(cluster: Cluster, node_id: int) -> str:
    """Why a broker has no page of the queue now; empty if it has one."""
    try:
        read(cluster, node_id, f"/queues/{NAME}")
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return str(json.loads(error.read())["error"])
    return ""


def shown_backlog(cluster: Cluster) -> int:
    found = 0
    for node_id in cluster.running:
        page = read(cluster, node_id, "/metrics")
        found += sum(map(int, re.findall(rf'^tidelog_share_backlog{{group="{NAME}",topic="{NAME}"}} (\d+)', page, re.MULTILINE)))
    return found


def test_every_broker_answers_for_the_whole_queue() -> None:
    with Cluster(3, configs=CONFIGS) as cluster:
        admin = AdminClient({**COMMON, "bootstrap.servers": cluster.bootstrap_servers})
        # No broker has the log of another one's partition.
        new = NewTopic(NAME, 3, replica_assignment=[[1], [2], [VICTIM]], config={"min.insync.replicas": "1"})
        admin.create_topics([new])[NAME].result(WAIT_SECONDS_MAX)
        with Queue(cluster.bootstrap_servers, NAME) as queue:
            for number in range(60):
                queue.send(f"{number}", key=f"{number}")
            queue.flush()
            assert [found["backlog"] for found in backlogs(cluster)] == [60] * 3, "the group has not begun"
            jobs = receive(queue, 60)
            assert {job.partition for job in jobs} == {0, 1, 2}
            queue.ack(jobs[:20])
            queue.nack(jobs[20:30])
            # A page is reused for a second.
            wait_until(lambda: counts(cluster) == [(40, 30, 10)] * 3, "every broker has heard of it")
            assert all(0 < found["oldest_seconds"] < 600 for found in backlogs(cluster))
            with ShareGroupAdmin(cluster.bootstrap_servers) as groups:
                offsets = groups.offsets(NAME).values()
            assert [sum(getattr(each, name) for each in offsets) for name in ("lag", "available", "acquired")] == [40, 10, 30]
        assert [found["backlog"] for found in backlogs(cluster)] == [40] * 3
        wait_until(lambda: shown_backlog(cluster) == 40, "every partition is shown once, although nobody works")

        cluster.kill(VICTIM)
        # A part of the backlog is not the backlog.
        wait_until(lambda: "partition 2 of jobs cannot be asked" in unavailable(cluster, 1), "the lost leader is missed")
