"""What acks=1 can lose, and acks=all cannot: the leader dies before a follower has copied the message.

    python examples/acks.py

It starts a cluster of three brokers of its own. See docs/guides/the-dial.md.
"""

import time
from contextlib import suppress

from tidelog import Admin, Consumer, Producer, TidelogError
from tidelog.client.errors import BrokerUnavailable
from tidelog.testing import Cluster

SECONDS = 5


def send_while_cut_off(acks: int | str) -> str:
    """Send to a leader that its followers cannot reach, kill the leader, and say what became of the message."""
    with Cluster(3) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("orders", partitions=1, replication_factor=3)
            cluster_now = admin.describe_cluster()
            leader = next(each.leader for each in cluster_now.topics["orders"])
        followers = [node for node in cluster.node_ids if node != leader]
        timeout_ms = SECONDS * 1000
        with Producer(cluster.bootstrap_servers, acks=acks, idempotent=False, delivery_timeout_ms=timeout_ms) as producer:
            producer.send("orders", "before").result(60)
            wait_until_copied(cluster.bootstrap_servers)
            cluster.partition(leader, followers)
            try:
                producer.send("orders", "the order that matters").result(SECONDS * 2)
                answer = "acknowledged"
            except TidelogError:
                answer = "not acknowledged"
        # The cut stays, so that what the dead leader sent last does not arrive after all.
        cluster.kill(leader)
        rest = ",".join(cluster.nodes[node].bootstrap_servers for node in followers)
        kept = "there" if "the order that matters" in read(rest) else "gone"
    return f"acks={acks}: the order was {answer}, and after its leader died it is {kept}"


def wait_until_copied(servers: str) -> None:
    """Readers see what all in-sync replicas have."""
    while "before" not in read(servers):
        time.sleep(0.1)


def read(servers: str) -> list[str | None]:
    """All of the topic that there is, as soon as it has a leader."""
    found: list[str | None] = []
    with Consumer(servers, topics=["orders"], start="earliest") as consumer:
        while not found:
            with suppress(BrokerUnavailable):  # The followers are electing a leader.
                found += [message.text() for message in consumer.poll(timeout=1)]
        found += [message.text() for message in consumer.poll(timeout=2)]
    return found


def main() -> None:
    for acks in (1, "all"):
        print(send_while_cut_off(acks), flush=True)


if __name__ == "__main__":
    main()
