"""The simulated network: delays, chunks, partitions one way and both, cuts in mid-stream, crashes."""

import pytest

from simulation.network import CONNECT_TIMEOUT_US, SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from tests.ports.test_network import Recorder
from tidelog.ports.network import Connection


class Chunks(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[int] = []

    def received(self, connection: Connection, data: bytes) -> None:
        super().received(connection, data)
        self.chunks.append(len(data))


class Link:
    """A connection from host a to host b, open on both sides."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler()
        self.network = SimulatedNetwork(self.scheduler, SimulatedRandomness(seed))
        self.client, self.server = Chunks(), Chunks()
        self.listener = self.network.host("b").listen("0.0.0.0", 9092, self.server)
        self.connection = self.network.host("a").connect("b", 9092, self.client)
        self.scheduler.run_all()
        self.accepted = self.server.opened_connections[0]


MESSAGE = bytes(range(256)) * 40


def test_names_and_ports() -> None:
    link = Link()
    assert link.listener.address == ("b", 9092)
    assert link.connection.peer == "b:9092"
    assert link.accepted.peer.startswith("a:")
    with pytest.raises(OSError, match="Cannot assign"):
        link.network.host("a").listen("b", 1, Recorder())


def test_loopback_is_the_host_itself() -> None:
    link = Link()
    client = Recorder()
    link.network.host("b").connect("127.0.0.1", 9092, client)
    stranger = Recorder()
    link.network.host("a").connect("localhost", 9092, stranger)
    link.scheduler.run_all()
    assert len(client.opened_connections) == 1
    assert stranger.ends == ["connection refused"]


def test_chunks_are_split_anywhere_and_stay_in_order() -> None:
    sizes: set[int] = set()
    for seed in range(20):
        link = Link(seed)
        for _ in range(5):
            link.connection.send([MESSAGE])
        link.scheduler.run_all()
        assert link.server.data == MESSAGE * 5
        sizes.update(link.server.chunks)
    assert len(sizes) > 20


def test_bytes_never_overtake_the_opening() -> None:
    class Eager(Recorder):
        def opened(self, connection: Connection) -> None:
            super().opened(connection)
            connection.send([b"welcome"])

    for seed in range(30):
        scheduler = Scheduler()
        network = SimulatedNetwork(scheduler, SimulatedRandomness(seed))
        network.host("b").listen("b", 9092, Eager())
        client = Recorder()
        network.host("a").connect("b", 9092, client)
        scheduler.run_all()
        assert client.data == b"welcome"


def test_a_link_has_its_own_delay_in_each_direction() -> None:
    link = Link()
    link.network.set_delay("a", "b", (5_000_000, 5_000_000))
    started_us = link.scheduler.now_us
    link.connection.send([b"x"])
    link.accepted.send([b"y"])
    link.scheduler.run_until(lambda: bool(link.client.data))
    assert link.scheduler.now_us - started_us <= 1_000
    link.scheduler.run_until(lambda: bool(link.server.data))
    assert link.scheduler.now_us - started_us == 5_000_000


def test_a_partition_holds_bytes_back_until_it_heals() -> None:
    link = Link()
    link.network.partition("a", "b")
    link.connection.send([b"to b"])
    link.accepted.send([b"to a"])
    link.scheduler.run_all()
    assert (bytes(link.client.data), bytes(link.server.data)) == (b"", b"")
    link.network.heal("a", "b")
    link.scheduler.run_all()
    assert (bytes(link.client.data), bytes(link.server.data)) == (b"to a", b"to b")


def test_a_partition_catches_bytes_on_their_way() -> None:
    link = Link()
    link.connection.send([b"to b"])
    link.network.partition("a", "b")
    link.scheduler.run_all()
    assert link.server.data == b""
    link.network.heal_all()
    link.scheduler.run_all()
    assert link.server.data == b"to b"


def test_a_partition_one_way() -> None:
    link = Link()
    link.network.partition("a", "b", one_way=True)
    link.connection.send([b"to b"])
    link.accepted.send([b"to a"])
    link.scheduler.run_all()
    assert (bytes(link.client.data), bytes(link.server.data)) == (b"to a", b"")


def test_a_close_behind_a_partition_is_heard_of_when_it_heals() -> None:
    link = Link()
    link.network.partition("a", "b")
    link.connection.close()
    link.scheduler.run_all()
    assert link.server.ends == []
    link.network.heal_all()
    link.scheduler.run_all()
    assert link.server.ends == ["closed by the peer"]


@pytest.mark.parametrize("one_way", [("a", "b"), ("b", "a")])
def test_a_connect_into_a_partition_times_out_or_waits_for_it_to_heal(one_way: tuple[str, str]) -> None:
    link = Link()
    link.network.partition(*one_way, one_way=True)
    lost, patient = Recorder(), Recorder()
    started_us = link.scheduler.now_us
    link.network.host("a").connect("b", 9092, lost)
    link.scheduler.run_until(lambda: bool(lost.ends))
    assert lost.ends == ["connection timed out"]
    assert link.scheduler.now_us - started_us <= CONNECT_TIMEOUT_US
    link.network.host("a").connect("b", 9092, patient).send([b"x"])
    link.scheduler.run_for(1_000_000)
    assert patient.opened_connections == []
    link.network.heal("a", "b")
    link.scheduler.run_all()
    assert len(patient.opened_connections) == 1
    assert link.server.data == b"x"


def test_a_cut_ends_both_sides_in_mid_stream() -> None:
    lengths: set[int] = set()
    for seed in range(30):
        link = Link(seed)
        link.connection.send([MESSAGE])
        link.network.cut("b", "a")
        link.connection.send([b"not any more"])
        link.scheduler.run_all()
        assert link.client.ends == link.server.ends == ["connection reset by the peer"]
        assert MESSAGE.startswith(link.server.data)
        lengths.add(len(link.server.data))
    assert len(lengths) > 15


def test_a_cut_strikes_no_other_link() -> None:
    link = Link()
    other = Recorder()
    link.network.host("c").connect("b", 9092, other)
    link.scheduler.run_all()
    link.network.cut("a", "b")
    link.scheduler.run_all()
    assert link.client.ends
    assert other.ends == []
    assert len(link.server.ends) == 1


def test_a_cut_before_the_connection_is_open() -> None:
    link = Link()
    client = Recorder()
    link.network.host("a").connect("b", 9092, client)
    link.network.cut("a", "b")
    link.scheduler.run_all()
    assert client.ends == ["connection reset by the peer"]


def test_a_crashed_host_hears_nothing_and_the_others_see_the_end() -> None:
    link = Link()
    link.accepted.send([b"x" * 100])
    link.connection.send([b"lost"])
    link.network.crash("b")
    link.scheduler.run_all()
    assert link.client.ends == ["connection reset by the peer"]
    assert link.server.ends == []
    assert link.server.data == b""
    refused = Recorder()
    link.network.host("a").connect("b", 9092, refused)
    link.scheduler.run_all()
    assert refused.ends == ["connection refused"]
    # Its next process may listen there again.
    link.network.host("b").listen("b", 9092, Recorder())


def test_a_listener_that_closed_keeps_its_connections_and_frees_its_address() -> None:
    link = Link()
    link.listener.close()
    again = link.network.host("b").listen("b", 9092, Recorder())
    link.listener.close()
    link.connection.send([b"still here"])
    refused = Recorder()
    link.network.host("a").connect("b", again.address[1], refused)
    link.scheduler.run_all()
    assert link.server.data == b"still here"
    assert refused.ends == []
