"""Members that do as chance says, a log that commits late or fails, a broker that restarts.

Whatever happens: every request is answered in the end, each once; a member hears an assignment of a generation only if that is in
the log; and when all do their part, the group becomes stable.
"""

import pytest

from simulation.randomness import SimulatedRandomness
from tests.groups.classic.bench import GROUP, Asked, GroupBench, Join, Sync
from tidelog.coordinator.errors import CoordinatorError
from tidelog.coordinator.shard import ShardState
from tidelog.groups.classic.group import ClassicGroup, ClassicState, metadata_size
from tidelog.groups.classic.requests import LeavingMember
from tidelog.wire.errors import ErrorCode

CLIENTS = 5
STEPS = 400
FORGET = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class Client:
    """As a consumer: joins, syncs, sends heartbeats; one request at a time, unless it gives up and starts over."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.instance = f"instance-{number}" if number % 2 else None
        self.member_id = ""
        self.generation = -1
        self.asked: Join | Sync | None = None  # Unanswered, or not yet looked at.
        self.members: list[str] | None = None
        self.is_stable = False

    def step(self) -> None:
        bench = self.world.bench
        if self.asked is not None:
            if not self.asked.is_answered:
                return
            answered, self.asked = self.asked, None
            self._hear(answered)
        elif self.is_stable:
            beat = Asked()
            self.world.asked.append(beat)
            bench.write(lambda machine: machine.classic.heartbeat(GROUP, self.member_id, self.instance, self.generation), beat)
            if beat.response is not None and beat.response is not ErrorCode.NONE:
                self._fail(beat.response)
        elif self.generation >= 0:
            assignments = dict.fromkeys(self.members or (), b"%d" % self.generation)
            self._ask(bench.sync(self.member_id, self.generation, assignments, instance=self.instance))
        else:
            self._ask(bench.join(self.member_id, self.instance))

    def _ask(self, asked: Join | Sync) -> None:
        self.asked = asked
        self.world.asked.append(asked)

    def _hear(self, asked: Join | Sync) -> None:
        if asked.error is not None:
            assert isinstance(asked.error, CoordinatorError)
            self.generation, self.is_stable = -1, False
        elif isinstance(asked, Join):
            response = asked.response
            if response.error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            elif response.error is not ErrorCode.NONE:
                self._fail(response.error)
            else:
                self.member_id, self.generation = response.member_id, response.generation
                is_leader = response.leader == response.member_id and not response.skip_assignment
                self.members = [member.member_id for member in response.members] if is_leader else None
        elif asked.response.error is not ErrorCode.NONE:
            self._fail(asked.response.error)
        else:
            self.is_stable = True
            self.world.check_assignment(self, asked.response.assignment)

    def _fail(self, code: ErrorCode) -> None:
        self.generation, self.is_stable = -1, False
        if code in FORGET:
            self.member_id = ""


class World:
    def __init__(self, seed: int) -> None:
        self.chance = SimulatedRandomness(seed)
        self.bench = GroupBench()
        self.asked: list[Asked] = []
        self.clients: list[Client] = []
        self.clients += [Client(self, number) for number in range(CLIENTS)]

    def check_assignment(self, client: Client, assignment: bytes) -> None:
        known = [
            (member.member_id, record.value.generation, member.assignment)
            for record in self.bench.records()
            if record.value is not None
            for member in record.value.members
        ]
        assert (client.member_id, client.generation, assignment) in known
        assert assignment in (b"", b"%d" % client.generation)

    def disturb(self) -> None:
        kind = self.chance.integer(0, 9)
        bench = self.bench
        if kind == 0:
            bench.is_committing = not bench.is_committing
        elif kind == 1:
            # A process is killed, and another started: what the first one asked is answered into the void.
            number = self.chance.integer(0, CLIENTS - 1)
            self.clients[number] = Client(self, number)
        elif kind == 2:
            client = self.clients[self.chance.integer(0, CLIENTS - 1)]
            leaving = LeavingMember(client.member_id, client.instance)
            bench.write(lambda machine: machine.classic.leave(GROUP, [leaving]), Asked())
        elif kind == 3:
            bench.runtime.flush()
            bench.log.fail_commits(OSError("a bad disk"))
        elif kind == 4:
            bench.run_for(self.chance.integer(1000, 15_000))
        else:
            bench.run_for(self.chance.integer(1, 500))

    def settle(self) -> None:
        self.bench.is_committing = True
        self.bench.commit_all()
        for _ in range(2000):
            self.bench.run_for(100)
            if self.bench.shard.state is not ShardState.ACTIVE:
                continue
            for client in self.clients:
                client.step()
            group = self.bench.machine.groups.find(GROUP)
            if isinstance(group, ClassicGroup) and group.state is ClassicState.STABLE and all(c.is_stable for c in self.clients):
                return
        raise AssertionError("the group never became stable")


@pytest.mark.parametrize("seed", range(40))
def test_everybody_is_answered_and_the_group_becomes_stable(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.clients[world.chance.integer(0, CLIENTS - 1)].step()
        if world.chance.integer(0, 3) == 0:
            world.disturb()
        if world.chance.integer(0, 60) == 0:
            world.bench.log.commit()
            world.bench = world.bench.restarted()
            for client in world.clients:
                client.asked = None
            world.asked.clear()
    world.settle()
    group = world.bench.group
    assert {client.member_id for client in world.clients} <= set(group.members)
    unanswered = [asked for asked in world.asked if not asked.is_answered]
    assert not unanswered, f"{len(unanswered)} requests were never answered"
    assert not [event for event in world.bench.events if event[0] == "unexpected_error"]
    held = sum(metadata_size(member.protocols) + len(member.assignment) for member in group.members.values())
    assert world.bench.metadata_budget.bytes_held == held
