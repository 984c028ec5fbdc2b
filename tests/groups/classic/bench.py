"""A shard of the group coordinator without a broker: its log in memory, time on a simulated clock, members that ask."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.coordinator.harness import MemoryLog
from tests.groups.shard_bench import ShardBench
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.requests import (
    JoinRequest,
    JoinResponse,
    LeaveResult,
    LeavingMember,
    Protocols,
    SyncRequest,
    SyncResponse,
)
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.wire.errors import ErrorCode

GROUP = "billing"
BATCH_BYTES_MAX = 1 << 20
SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE: Protocols = (("range", b"range metadata"),)


class Asked:
    """A request: ``response`` or ``error`` once it is answered. More than one answer is a mistake, except that a decision that
    fails may say so twice, with the same error: to those who wait, and to the one who asked."""

    def __init__(self) -> None:
        self.response: Any = None
        self.error: Exception | None = None

    def __call__(self, response: Any, error: Exception | None) -> None:
        if response is None and error is None:
            return  # The answer is kept for later.
        if self.is_answered:
            assert response is None, "answered twice"
            return
        self.response, self.error = response, error

    @property
    def is_answered(self) -> bool:
        return self.response is not None or self.error is not None


class Join(Asked):
    response: JoinResponse

    @property
    def code(self) -> ErrorCode | None:
        return self.response.error if self.is_answered else None


class Sync(Asked):
    response: SyncResponse

    @property
    def code(self) -> ErrorCode | None:
        return self.response.error if self.is_answered else None


class GroupBench(ShardBench[GroupCoordinator]):
    """``is_committing``: every decision is written and committed at once."""

    def __init__(self, settings: Mapping[str, Any] | None = None, log: MemoryLog | None = None, seed: int = 1) -> None:
        self.is_committing = True
        super().__init__(GroupCoordinator, settings, log=log, seed=seed)

    @property
    def group(self) -> ClassicGroup:
        group = self.machine.groups.find(GROUP)
        assert isinstance(group, ClassicGroup)
        return group

    def restarted(self, settings: Mapping[str, Any] | None = None) -> "GroupBench":
        """Another broker on the same log: nothing else has survived."""
        return GroupBench(self.settings | dict(settings or {}), self.log, self.seed + 1)

    def after_step(self) -> None:
        if self.is_committing:
            self.commit_all()

    # -- requests ------------------------------------------------------------------------------------------------------------

    def write(self, decide: Callable[[GroupCoordinator], CoordinatorResult], on_done: Asked) -> None:
        self.shard.write(decide, on_done)
        self.after_step()

    def join(
        self,
        member_id: str = "",
        instance: str | None = None,
        *,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        group_id: str = GROUP,
        client_id: str = "app",
    ) -> Join:
        asked = Join()
        request = JoinRequest(
            group_id,
            member_id,
            instance,
            client_id,
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
        )
        self.write(lambda machine: machine.classic.join(request, asked), asked)
        return asked

    def join_with_id(self, **more: Any) -> Join:
        """As clients do: ask for an id, and join with it."""
        first = self.join(**more)
        assert first.code is ErrorCode.MEMBER_ID_REQUIRED, first.response
        return self.join(first.response.member_id, **more)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        group_id: str = GROUP,
    ) -> Sync:
        asked = Sync()
        request = SyncRequest(group_id, member_id, instance, generation, protocol_type, protocol_name, dict(assignments or {}))
        self.write(lambda machine: machine.classic.sync(request, asked), asked)
        return asked

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None, group_id: str = GROUP) -> ErrorCode:
        asked = Asked()
        self.write(lambda machine: machine.classic.heartbeat(group_id, member_id, instance, generation), asked)
        code: ErrorCode = asked.response
        return code

    def asked(self) -> Asked:
        return Asked()

    def leave(self, *members: tuple[str, str | None], group_id: str = GROUP) -> list[LeaveResult]:
        asked = Asked()
        self.write(lambda machine: machine.classic.leave(group_id, [LeavingMember(*member) for member in members]), asked)
        results: list[LeaveResult] = asked.response
        return results

    # -- whole groups --------------------------------------------------------------------------------------------------------

    def finish_join(self) -> None:
        """The timer of the initial rebalance, which has no delay."""
        self.run_for(1)

    def stable(self, count: int = 1, *, instances: bool = False, **more: Any) -> list[str]:
        """A stable group; returns the ids of its members, the leader's first. The assignment of each is its own id."""
        joins = []
        for number in range(count):
            join = self.join(instance=f"instance-{number}", **more) if instances else self.join_with_id(**more)
            joins.append(join)
        self.finish_join()
        assert all(join.code is ErrorCode.NONE for join in joins), [join.response for join in joins]
        ids = [join.response.member_id for join in joins]
        ids.sort(key=lambda member_id: member_id != joins[0].response.leader)
        generation = joins[0].response.generation
        syncs = [self.sync(member_id, generation) for member_id in ids[1:]]
        syncs.append(self.sync(ids[0], generation, {member_id: member_id.encode() for member_id in ids}))
        assert all(sync.code is ErrorCode.NONE for sync in syncs)
        return ids
