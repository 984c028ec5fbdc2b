"""The runbooks for a cluster in docs/OPERATIONS.md, as written, on four brokers of which three vote."""

import threading
from pathlib import Path

from tests.docs.shell import ROOT, Shell, blocks
from tests.faults.load import wait_until
from tidelog import Producer
from tidelog.client.errors import TidelogError
from tidelog.testing import Cluster

PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text()
SECTION = PAGE[PAGE.index("## Runbooks for a cluster") : PAGE.index("## Read a topic again")]
SAFE, WHOLE, DRAIN, EVEN_OUT, DEAD, REMOVE, MAJORITY = blocks(SECTION, "bash")
REPLICATED = {"default.replication.factor": 3, "min.insync.replicas": 2, "offsets.topic.replication.factor": 3}
# Leadership returns to preferred replicas soon, and a busy machine does not make a broker that runs look dead.
CONFIGS = {**REPLICATED, "leader.imbalance.check.interval.seconds": 1, "broker.session.timeout.ms": 6_000}


class Writes(threading.Thread):
    """A client that goes on through all of it."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="client", daemon=True)
        self.count = 0
        self.problem: TidelogError | None = None
        self._servers = servers
        self._is_over = threading.Event()

    def run(self) -> None:
        with Producer(self._servers) as producer:
            while not self._is_over.wait(0.02):
                try:
                    producer.send("payments", value=b"%d" % self.count).result()
                except TidelogError as error:
                    self.problem = error
                    return
                self.count += 1

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def test_the_runbooks_as_written_while_a_client_writes(tmp_path: Path) -> None:
    with Cluster(4, configs=CONFIGS) as cluster:
        shell = Shell(tmp_path, cluster.bootstrap_servers)
        shell.run("tidelog topics create payments --partitions 6")
        writes = Writes(cluster.bootstrap_servers)
        writes.start()

        for node_id in cluster.node_ids:
            shell.run(SAFE.replace("stop 2", f"stop {node_id}"))
            cluster.restart(node_id)
            shell.run(WHOLE)

        shell.run(DRAIN)
        shell.run(EVEN_OUT)

        cluster.kill(4)
        wait_until(lambda: "brokers down: 1 (4)" in shell.run(DEAD), "the broker is missed")
        shell.run(REMOVE)

        before = writes.count
        for node_id in (1, 2):
            cluster.kill(node_id)
        cluster.start(1)
        cluster.start(2)
        assert "Leader " in shell.run(MAJORITY)
        wait_until(lambda: writes.count > before + 10 or writes.problem is not None, "the client goes on")
        writes.stop()
        assert writes.problem is None
