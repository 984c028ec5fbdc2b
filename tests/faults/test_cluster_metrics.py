"""What the metrics of three real brokers say while one of them is down, and when it is back."""

import re
import urllib.request
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.load import COMMON, WAIT_SECONDS_MAX, wait_until
from tidelog.testing import Cluster

VICTIM = 3
TOPICS = (
    # name, replicas of its only partition, min.insync.replicas
    ("safe", [VICTIM, 1, 2], 2),
    ("strict", [1, 2, VICTIM], 3),
    ("alone", [VICTIM], 1),
)
GAUGES = ("partitions_under_replicated", "partitions_under_min_isr", "partitions_without_leader", "brokers_down")
QUIET = dict.fromkeys(GAUGES, 0)
DOWN = {"partitions_under_replicated": 2, "partitions_under_min_isr": 1, "partitions_without_leader": 1, "brokers_down": 1}
COUNTERS = ("leader_elections_total", "unclean_leader_elections_total", "isr_shrinks_total", "isr_expansions_total")

CONFIGS = {
    "tidelog.metrics.listener": "127.0.0.1:0",
    # Nothing else is decided: no leader goes back, and no broker that is only slow is taken to be down.
    "auto.leader.rebalance.enable": False,
    "broker.session.timeout.ms": 9_000,
}


def sums(cluster: Cluster) -> dict[str, int]:
    """Each metric without labels, summed over the brokers that run."""
    found: dict[str, int] = dict.fromkeys((*GAUGES, *COUNTERS), 0)
    for node_id in cluster.running:
        address = next(event["metrics"] for event in reversed(cluster.nodes[node_id].events) if event["event"] == "started")
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        for name in found:
            found[name] += sum(int(float(value)) for value in re.findall(rf"^tidelog_{name} (\S+)$", page, re.MULTILINE))
    return found


def test_what_is_missed_while_a_broker_is_down_and_what_was_decided_about_it() -> None:
    with Cluster(3, configs=CONFIGS) as cluster:
        # The counts are those of the active controller, so it has to stay the same.
        while cluster.controller() == VICTIM:
            cluster.restart(VICTIM)
        admin = AdminClient({**COMMON, "bootstrap.servers": cluster.bootstrap_servers})
        new = [
            NewTopic(name, 1, replica_assignment=[replicas], config={"min.insync.replicas": str(minimum)})
            for name, replicas, minimum in TOPICS
        ]
        for created in admin.create_topics(new).values():
            created.result(WAIT_SECONDS_MAX)
        wait_until(lambda: gauges(sums(cluster)) == QUIET, "every replica is in sync")
        before = sums(cluster)

        cluster.kill(VICTIM)
        # It led "safe", which another one leads now, and "alone", which nobody leads and which is not in sync with anything.
        wait_until(lambda: gauges(sums(cluster)) == DOWN, "the metrics show what is missed")
        lost = {"leader_elections_total": 1, "isr_shrinks_total": 3}
        wait_until(lambda: changes(before, sums(cluster)) == lost, "what was decided about it is counted")
        after = sums(cluster)

        cluster.start(VICTIM)
        wait_until(lambda: gauges(sums(cluster)) == QUIET, "nothing is missed any more")
        # The brokers' pages are read one after the other: the controller may have decided more since its own was read.
        returned = {"leader_elections_total": 1, "isr_expansions_total": 3}
        wait_until(lambda: changes(after, sums(cluster)) == returned, "its return is counted")


def gauges(found: Mapping[str, int]) -> dict[str, int]:
    return {name: found[name] for name in GAUGES}


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in COUNTERS if after[name] != before[name]}
