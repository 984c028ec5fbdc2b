"""Rounds of kill -9 on a broker whose groups are at work: reading, committing, rebalancing.

Each kind of group has a topic of its own, a producer that waits out the crashes, and members that nobody helps: a member that
gives up is a problem. In each round some members leave and others join, and the broker is killed at a random moment around that.
A ledger per group checks, while it happens, that nothing is passed over and that nobody starts before the last acknowledged
commit; at the end every record was read, and the coordinator has at least what was acknowledged.
"""

import itertools
import threading
import time
from random import Random
from traceback import format_exception
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.clients.groups.admin import commit
from tests.compatibility.clients.groups.ledger import Ledger
from tests.compatibility.clients.groups.member import Member, Membership, Partition, all_of
from tests.compatibility.clients.groups.member_classes import MEMBERS
from tests.faults.load import COMMON, WAIT_SECONDS_MAX, wait_until
from tidelog.testing import Broker

PARTITIONS = 6
MEMBERS_COUNT = 3
# How long after the change of members the broker is killed, at most: joins, syncs and first commits happen within it.
KILL_SECONDS_MAX = 0.4
# Each group must have committed so often in a round before the broker may be killed.
COMMITS_MIN = 3
# A member whose leaving the crash swallowed holds the group up so long.
SESSION_TIMEOUT_MS = 3_000
RECORDS_PER_SECOND = 100

CONFIGS = {
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": SESSION_TIMEOUT_MS,
    "group.consumer.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 4,
}


class Kind(NamedTuple):
    clients: tuple[str, ...]
    """In turn."""
    assignor: str


class RoundsGroup:
    """A group, its topic, its members and who fills the topic."""

    def __init__(self, broker: Broker, name: str, kind: Kind) -> None:
        self.name = name
        self.topic = f"{name}-topic"
        self.ledger = Ledger()
        self.members: list[Member] = []
        self.end_offsets = [0] * PARTITIONS
        self.failures: list[str] = []
        self._broker = broker
        self._kind = kind
        self._clients = itertools.cycle(kind.clients)
        self._numbers = itertools.count()
        self._former: list[Member] = []
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": broker.bootstrap_servers,
                "acks": "all",
                "enable.idempotence": False,
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 5,
                "message.timeout.ms": int(WAIT_SECONDS_MAX * 1000),
            }
        )
        self._thread = threading.Thread(target=self._produce, name=f"producer of {name}", daemon=True)

    def start(self, admin: Any) -> None:
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(10)
        # From here on no position is lost without a member telling.
        commit(admin, self.name, dict.fromkeys(all_of(self.topic, PARTITIONS), 0))
        self._thread.start()
        for _ in range(MEMBERS_COUNT):
            self.join()

    def join(self) -> None:
        membership = Membership(
            self._broker.bootstrap_servers,
            self.name,
            (self.topic,),
            assignor=self._kind.assignor,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            may_reset=False,
            client_id=f"{self.name}-{next(self._numbers)}",
        )
        member = MEMBERS[next(self._clients)](membership, self.ledger)
        self.members.append(member)
        member.start()

    def replace_a_member(self, random: Random) -> None:
        """The new one joins while the old one leaves."""
        leaving = self.members.pop(random.randrange(len(self.members)))
        leaving.begin_to_leave()
        self._former.append(leaving)
        self.join()

    def problems(self) -> list[str]:
        given_up = [
            f"{each.name} gave up: {''.join(format_exception(each.error))}"
            for each in (*self.members, *self._former)
            if each.error is not None
        ]
        return [*self.ledger.problems, *given_up, *self.failures]

    def stop_producing(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self._producer.flush(WAIT_SECONDS_MAX):
            self.failures.append("not everything was delivered after the last restart")

    def end_members(self) -> None:
        everybody = [*self.members, *self._former]
        for member in everybody:
            member.begin_to_leave()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        for member in everybody:
            member.join(max(0.0, deadline - time.monotonic()))
            if member.is_alive():
                self.failures.append(f"{member.name} did not leave within {WAIT_SECONDS_MAX:.0f} s")

    def _produce(self) -> None:
        for number in itertools.count():
            if self._is_over.wait(1 / RECORDS_PER_SECOND):
                return
            self._producer.produce(self.topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._on_delivery)
            self._producer.poll(0)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(f"a record was not delivered: {error}")
            return
        # A retry may have stored a record twice; readers get both.
        self.end_offsets[message.partition()] = max(self.end_offsets[message.partition()], message.offset() + 1)


def run_group_rounds(broker: Broker, kinds: dict[str, Kind], rounds: int, random: Random) -> list[RoundsGroup]:
    admin = AdminClient({**COMMON, "bootstrap.servers": broker.bootstrap_servers})
    groups = [RoundsGroup(broker, name, kind) for name, kind in kinds.items()]
    try:
        for group in groups:
            group.start(admin)
        for number in range(rounds):
            _wait_for_commits(groups, number)
            for group in groups:
                group.replace_a_member(random)
            time.sleep(random.random() * KILL_SECONDS_MAX)
            broker.kill()
            broker.start()
        _wait_for_commits(groups, rounds)
        for group in groups:
            group.stop_producing()
        wait_until(lambda: all(_is_drained(group) or group.problems() for group in groups), "every record read")
        _wait_until_committed(groups)
    finally:
        for group in groups:
            group.stop_producing()
            group.end_members()
    return groups


def _is_drained(group: RoundsGroup) -> bool:
    return group.ledger.has_read_all(group.topic, group.end_offsets)


def _wait_for_commits(groups: list[RoundsGroup], number: int) -> None:
    enough = [group.ledger.commits + COMMITS_MIN for group in groups]

    def is_enough() -> bool:
        return all(group.ledger.commits >= wanted or group.problems() for group, wanted in zip(groups, enough, strict=True))

    try:
        wait_until(is_enough, f"commits of round {number}")
    except TimeoutError as error:
        stuck = [group.name for group, wanted in zip(groups, enough, strict=True) if group.ledger.commits < wanted]
        raise TimeoutError(f"no commits in round {number}: {stuck}") from error


def _wait_until_committed(groups: list[RoundsGroup]) -> None:
    def missing(group: RoundsGroup) -> dict[Partition, int]:
        wanted = {Partition(group.topic, number): end for number, end in enumerate(group.end_offsets)}
        return {partition: end for partition, end in wanted.items() if group.ledger.committed.get(partition, 0) != end}

    try:
        wait_until(lambda: all(not missing(group) or group.problems() for group in groups), "every record committed")
    except TimeoutError as error:
        refused = {member.name: member.refused_commits[-3:] for group in groups for member in group.members}
        raise TimeoutError(f"not committed: {[missing(group) for group in groups]}, last refusals {refused}") from error
