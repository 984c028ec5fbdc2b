"""To which cluster a node belongs: what it reads, makes, asks for, and refuses."""

import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from simulation.clock import SimulatedClock
from simulation.scheduler import Scheduler
from tidelog.config.broker import BROKER
from tidelog.config.definition import parse
from tidelog.config.listeners import ListenerAddress
from tidelog.config.types import Value
from tidelog.log.durability.checkpoints import MetaProperties, write_meta_properties
from tidelog.log.errors import DirectoryUnusable
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.server.cluster_identity import StoppedWhileWaiting, ask_quorum, describe_cluster, find_cluster_id
from tidelog.server.process import run_broker
from tidelog.testing import Cluster
from tidelog.testing.environment import reserve_port

LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,REPLICATION://127.0.0.1:0",
    "listener.security.protocol.map": "REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "REPLICATION",
    "controller.listener.names": "CONTROLLER",
    "process.roles": "broker",
}


class PlannedRandomness(RealRandomness):
    def __init__(self, *tokens: bytes) -> None:
        super().__init__()
        self._tokens = list(tokens)

    def token(self, length: int) -> bytes:
        return self._tokens.pop(0)


def nobody(servers: Sequence[ListenerAddress]) -> str:
    raise AssertionError("there is nobody to ask")


def alone() -> dict[str, Value]:
    return parse(BROKER, {})


def joining(**settings: str) -> dict[str, Value]:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return parse(BROKER, {**LISTENERS, **names})


def test_a_cluster_by_itself_makes_its_id_once(tmp_path: Path) -> None:
    disk = RealDisk()
    made = find_cluster_id(disk, PlannedRandomness(b"\x01" * 16), str(tmp_path), alone(), nobody)
    assert made == "AQEBAQEBAQEBAQEBAQEBAQ"
    write_meta_properties(disk, str(tmp_path / "meta.properties"), MetaProperties("theirs", 1, None))
    assert find_cluster_id(disk, PlannedRandomness(), str(tmp_path), alone(), nobody) == "theirs"


def test_no_cluster_id_looks_like_an_option(tmp_path: Path) -> None:
    randomness = PlannedRandomness(b"\xf8" * 16, b"\x02" * 16)
    assert find_cluster_id(RealDisk(), randomness, str(tmp_path), alone(), nobody) == "AgICAgICAgICAgICAgICAg"


def test_a_node_that_joins_asks_and_makes_nothing(tmp_path: Path) -> None:
    asked: list[Sequence[ListenerAddress]] = []

    def ask(servers: Sequence[ListenerAddress]) -> str:
        asked.append(tuple(servers))
        return "theirs"

    for settings in ({"controller_quorum_bootstrap_servers": "a:1,b:2"}, {"controller_quorum_voters": "7@a:1,8@b:2"}):
        found = find_cluster_id(RealDisk(), PlannedRandomness(), str(tmp_path), joining(node_id="3", **settings), ask)
        assert found == "theirs"
    assert asked == [(ListenerAddress("a", 1), ListenerAddress("b", 2))] * 2
    assert list(tmp_path.iterdir()) == []


def test_the_empty_directory_of_a_voter_is_refused(tmp_path: Path) -> None:
    values = parse(
        BROKER,
        {
            **LISTENERS,
            "listeners": f"{LISTENERS['listeners']},CONTROLLER://127.0.0.1:9",
            "process.roles": "broker,controller",
            "node.id": "3",
            "controller.quorum.voters": "3@127.0.0.1:9,4@b:1",
        },
    )
    with pytest.raises(DirectoryUnusable, match="tidelog storage format --cluster-id ID --node-id 3"):
        find_cluster_id(RealDisk(), PlannedRandomness(), str(tmp_path), values, nobody)


def controller_of(cluster: Cluster) -> ListenerAddress:
    (controllers,) = [text for text in cluster.nodes[1].events[-1]["listeners"] if text.startswith("CONTROLLER")]
    return ListenerAddress("127.0.0.1", int(controllers.rpartition(":")[2]))


def test_a_controller_tells_the_cluster_id() -> None:
    with Cluster(1) as cluster:
        server = controller_of(cluster)
        assert describe_cluster(server) == cluster.cluster_id
        # The others in the list do not matter.
        with reserve_port() as reserved:
            dead = ListenerAddress("127.0.0.1", reserved.getsockname()[1])
            clock = SimulatedClock(Scheduler())
            assert ask_quorum([dead, server], report=unexpected, clock=clock, wait=lambda _: False) == cluster.cluster_id


def unexpected(event: str, facts: dict[str, object]) -> None:
    raise AssertionError(event)


def test_while_it_waits_it_says_every_five_seconds_whom_it_cannot_reach() -> None:
    scheduler = Scheduler()
    clock = SimulatedClock(scheduler)
    said: list[tuple[int, str, dict[str, object]]] = []

    def wait(seconds: float) -> bool:
        scheduler.run_for(int(seconds * 1_000_000))
        return clock.monotonic_ms() >= 16_000

    def report(event: str, facts: dict[str, object]) -> None:
        said.append((clock.monotonic_ms(), event, facts))

    with reserve_port() as reserved:
        dead = ListenerAddress("127.0.0.1", reserved.getsockname()[1])
        with pytest.raises(StoppedWhileWaiting):
            ask_quorum([dead], report=report, clock=clock, wait=wait)
    assert [(at_ms, event) for at_ms, event, _ in said] == [(ms, "waiting_for_the_cluster_id") for ms in (5_000, 10_000, 15_000)]
    assert said[0][2] == {"cannot_reach": f"{dead} (connection refused)"}


@pytest.mark.parametrize(
    "answer", [b"", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x00\x05\x00\x00\x00\x00\x00", b"HTTP/1.1"]
)
def test_an_answer_that_is_none(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        waits: list[float] = []

        def wait(seconds: float) -> bool:
            waits.append(seconds)
            return True

        address = ListenerAddress("127.0.0.1", server.getsockname()[1])
        with pytest.raises(StoppedWhileWaiting):
            ask_quorum([address], report=unexpected, clock=SimulatedClock(Scheduler()), wait=wait)
        thread.join()
    assert len(waits) == 1


def test_a_program_that_contains_a_node_can_stop_it_while_it_waits(tmp_path: Path) -> None:
    class Program:
        def stoppable(self, stop: Callable[[], object]) -> None:
            stop()

    with reserve_port() as reserved:
        servers = f"127.0.0.1:{reserved.getsockname()[1]}"
        settings = {**LISTENERS, "controller.quorum.bootstrap.servers": servers, "log.dirs": str(tmp_path / "data")}
        code = run_broker(settings, report=unexpected, on_serving=lambda _: None, embedding=Program())
    assert code == 1
    assert not (tmp_path / "data").exists()
