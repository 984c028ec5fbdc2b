"""A cluster of three processes on one machine: ``python -m bench.cluster`` prints medians of several runs.

- from nothing to the first acknowledged message (acks=all), with three empty directories;
- the memory of the three processes together when they are idle;
- creating a topic: p50 and p99, through every broker in turn;
- from ``kill -9`` of the active controller to the next committed decision.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from tidelog.client.admin import Admin
from tidelog.client.errors import TidelogError
from tidelog.client.producer import Producer
from tidelog.testing import Cluster

TOPICS = 200
IDLE_SECONDS = 5.0
DECISION_SECONDS_MAX = 30.0
MIB = 1024 * 1024


def first_message(cluster: Cluster, began: float) -> float:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("first", value="hello").result()
    return time.monotonic() - began


def memory_bytes(cluster: Cluster) -> int:
    """What the processes occupy together. Pages that they share count once (PSS)."""
    total = 0
    for node in cluster.nodes.values():
        for line in Path(f"/proc/{node.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def create_seconds(cluster: Cluster) -> list[float]:
    admins = [Admin(node.bootstrap_servers) for node in cluster.nodes.values()]
    found = []
    for number in range(TOPICS):
        began = time.monotonic()
        admins[number % len(admins)].create_topic(f"topic-{number}", partitions=1)
        found.append(time.monotonic() - began)
    for admin in admins:
        admin.close()
    return found


def decision_after_kill_seconds(cluster: Cluster) -> float:
    victim = cluster.controller()
    survivor = next(node for node_id, node in cluster.nodes.items() if node_id != victim)
    with Admin(survivor.bootstrap_servers) as admin:
        admin.describe_cluster()
        cluster.kill(victim)
        began = time.monotonic()
        while True:
            try:
                admin.create_topic(f"after-{time.monotonic_ns()}", partitions=1)
                return time.monotonic() - began
            except TidelogError:
                if time.monotonic() > began + DECISION_SECONDS_MAX:
                    raise


def run_once() -> dict[str, float]:
    cluster = Cluster(3)
    began = time.monotonic()
    with cluster:
        first = first_message(cluster, began)
        time.sleep(IDLE_SECONDS)
        memory = memory_bytes(cluster)
        creations = sorted(create_seconds(cluster))
        return {
            "first acknowledged message, s": first,
            "idle memory of three processes, MiB": memory / MIB,
            "create a topic, p50, ms": 1000 * creations[len(creations) // 2],
            "create a topic, p99, ms": 1000 * creations[int(len(creations) * 0.99)],
            "kill -9 of the controller to the next decision, s": decision_after_kill_seconds(cluster),
        }


def main(run: Callable[[], dict[str, float]] = run_once) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = [run() for _ in range(parser.parse_args().runs)]
    for name in runs[0]:
        values = [each[name] for each in runs]
        print(f"{name:<52} {statistics.median(values):8.2f}   (from {min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
