"""Groups of real clients on the broker that all client tests share; each test has a group and topics of its own."""

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import topic_name
from tests.compatibility.clients.groups.ledger import Ledger
from tests.compatibility.clients.groups.member import Member, Membership
from tests.compatibility.clients.groups.member_classes import MEMBERS
from tests.compatibility.clients.groups.member_process import MemberProcess
from tidelog.testing import Broker


class Group:
    """One group, and the members that a test has brought into it."""

    def __init__(self, bootstrap_servers: str, name: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.name = name
        self.ledger = Ledger()
        self._members: list[Member] = []
        self._processes: list[MemberProcess] = []
        self._numbers = itertools.count()

    def join(self, client: str, *topics: str, **wanted: Any) -> Member:
        """A new member; it is under way when this returns."""
        member = MEMBERS[client](self._membership(topics, wanted), self.ledger)
        self._members.append(member)
        member.start()
        return member

    def join_in_a_process(self, client: str, *topics: str, **wanted: Any) -> MemberProcess:
        process = MemberProcess(client, self._membership(topics, wanted))
        self._processes.append(process)
        return process

    def _membership(self, topics: tuple[str, ...], wanted: dict[str, Any]) -> Membership:
        wanted = {"client_id": f"member-{next(self._numbers)}", **wanted}
        return Membership(self.bootstrap_servers, self.name, topics, **wanted)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for member in self._members:
            member.begin_to_leave()
        for member in self._members:
            member.join(CALL_SECONDS_MAX)
        assert [member.name for member in self._members if member.is_alive()] == []

    def errors(self) -> list[tuple[str, BaseException]]:
        return [(member.name, member.error) for member in self._members if member.error is not None]


MakeGroup = Callable[..., Group]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A client that is closed while it connects may leave the socket to the garbage collector; ``new_group`` calls that."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture
def new_group(broker: Broker, request: pytest.FixtureRequest) -> Iterator[MakeGroup]:
    """Makes a group named after the test. Whatever is left in it when the test ends leaves then, and must be well."""
    groups: list[Group] = []

    def make(bootstrap_servers: str = broker.bootstrap_servers) -> Group:
        groups.append(Group(bootstrap_servers, topic_name(request.node.name)))
        return groups[-1]

    yield make
    for group in groups:
        group.end()
    gc.collect()
    assert [error for group in groups for error in group.errors()] == []


@pytest.fixture
def group(new_group: MakeGroup) -> Group:
    return new_group()


class Flow:
    """A producer that sends to all partitions of a topic until it is told to stop. What it sent is acknowledged then."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._producer = ConfluentClient(bootstrap_servers).producer(**{"linger.ms": 5})
        self._topic = topic
        self._partitions = partitions
        self.end_offsets = [0] * partitions

    def run_until(self, is_over: threading.Event) -> None:
        for number in itertools.count():
            self.send(number % self._partitions)
            if is_over.wait(0.001):
                return

    def send(self, partition: int) -> None:
        value = str(self.end_offsets[partition]).encode()
        self.end_offsets[partition] += 1
        self._producer.produce(self._topic, value, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(CALL_SECONDS_MAX) == 0


@contextmanager
def flowing(bootstrap_servers: str, topic: str, partitions: int) -> Iterator[Flow]:
    """Records arrive all the while; at the end ``end_offsets`` says up to where."""
    flow, is_over = Flow(bootstrap_servers, topic, partitions), threading.Event()
    thread = threading.Thread(target=flow.run_until, args=(is_over,))
    thread.start()
    try:
        yield flow
    finally:
        is_over.set()
        thread.join()
        flow.flush()


def fill(bootstrap_servers: str, topic: str, partitions: int, count: int) -> None:
    """``count`` records into each partition; each value is its record's offset."""
    flow = Flow(bootstrap_servers, topic, partitions)
    for _ in range(count):
        for partition in range(partitions):
            flow.send(partition)
    flow.flush()
