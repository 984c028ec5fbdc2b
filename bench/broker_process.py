"""What a broker's process has used, as the kernel counts it, and topics for benchmarks of it."""

import os
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.testing import Broker

# Into the page cache, as Kafka does by default: so it is the broker that is measured and not the disk.
RELAXED = {"flush.messages": "10000"}
WAIT_SECONDS_MAX = 120.0


class Process(Protocol):
    """A broker as the kernel sees it: ours, or another one that is measured beside it."""

    @property
    def pid(self) -> int: ...


def create_topic(broker: Broker, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1, config=RELAXED)])[name].result(WAIT_SECONDS_MAX)


def cpu_seconds(broker: Process) -> float:
    """Of all threads of the process, which the scheduler knows by the nanosecond."""
    threads = Path(f"/proc/{broker.pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def resident_mebibytes(broker: Process) -> float:
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
