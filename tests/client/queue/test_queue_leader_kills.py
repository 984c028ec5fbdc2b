"""Leaders that are killed at random points, one of three at a time, under workers of which some are killed, too. The ledger at
the end is that of ``test_queue_kills``: every job was handled, and none was delivered after its acknowledgement had been
answered."""

import random
from pathlib import Path

import pytest

from tests.client.queue.test_queue_kills import MESSAGES_PER_ROUND, ROUNDS, SEED, Workers
from tests.client.queue.working import SECONDS_MAX
from tests.compatibility.cluster.test_share_consumer import REPLICATED
from tidelog.client.admin import Admin
from tidelog.client.queue import Queue
from tidelog.client.queue.share_groups import OFFSET_RESET, ShareGroupAdmin
from tidelog.testing import Cluster

PARTITIONS = 6

pytestmark = pytest.mark.tidelog_only


def is_all_settled(bootstrap: str, name: str, sent: set[tuple[int, int]]) -> bool:
    with ShareGroupAdmin(bootstrap) as groups:
        starts = {each.partition: at.start_offset for each, at in groups.offsets(name).items()}
    return all(starts.get(partition, 0) > offset for partition, offset in sent)


@pytest.mark.parametrize("is_queue_topic", [False, True], ids=["ordinary topic", "queue topic"])
def test_no_job_is_lost_or_done_twice_when_leaders_are_killed(tmp_path: Path, is_queue_topic: bool) -> None:
    choices = random.Random(SEED)
    name = "jobs"
    sessions = {"group.share.session.timeout.ms": 1_500, "group.share.heartbeat.interval.ms": 300}
    with Cluster(3, configs={**REPLICATED, **sessions}) as cluster:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap) as admin, ShareGroupAdmin(bootstrap) as groups:
            admin.create_topic(
                name, partitions=PARTITIONS, replication_factor=3, tidelog_queue_enable=str(is_queue_topic).lower()
            )
            # A job whose workers and leaders are killed again and again is not given up here.
            groups.set_settings(name, {"share.delivery.count.limit": "25", OFFSET_RESET: "earliest"})
        crew = Workers(tmp_path, bootstrap, name)
        sent: set[tuple[int, int]] = set()
        try:
            for _ in range(3):
                crew.start()
            for _ in range(ROUNDS):
                victim = choices.choice(cluster.node_ids)
                with Queue(bootstrap, name) as queue:
                    deliveries = [queue.send(f"{number}", key=f"{number}") for number in range(MESSAGES_PER_ROUND)]
                    results = [delivery.result(SECONDS_MAX) for delivery in deliveries]
                sent.update((each.partition, each.offset or 0) for each in results)
                crew.wait_for_acked(len(crew.acked()) + choices.randint(1, MESSAGES_PER_ROUND // 4))
                cluster.kill(victim)
                if choices.random() < 0.5:
                    crew.kill_one()
                    crew.start()
                wanted = len(sent) - MESSAGES_PER_ROUND // 2
                crew.wait_until(lambda: len(crew.received()) >= wanted)  # noqa: B023 - it is called at once
                cluster.start(victim)
            # An acknowledgement whose answer went down with a leader may have taken effect, and no line tells of it. What counts
            # is that everything was received, and is settled now.
            crew.wait_until(lambda: sent <= crew.received() and is_all_settled(bootstrap, name, sent))
        finally:
            crew.close()
        acked: dict[tuple[int, int], int] = {}
        for moment, word, job in crew.events():
            assert job not in acked, f"{word} {job} {(moment - acked[job]) / 1e6:.1f} ms after it was acknowledged (seed {SEED})"
            if word == "acked":
                acked[job] = moment
        events = [event for node in cluster.nodes.values() for event in node.events]
        assert [event for event in events if event["event"] in ("unexpected_error", "failed")] == []
