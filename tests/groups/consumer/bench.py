"""A shard of the group coordinator without a broker: its log in memory, time on a simulated clock, topics as a test says."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.groups.shard_bench import ShardBench
from tidelog.controller.errors import ApiError
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.requests import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.wire.errors import ErrorCode

GROUP = "billing"
SESSION_MS = 45_000
REBALANCE_MS = 30_000
BATCH_BYTES_MAX = 1 << 20


class ConsumerBench(ShardBench[GroupCoordinator]):
    def __init__(self, topics: Mapping[str, int] | None = None, settings: Mapping[str, Any] | None = None) -> None:
        self.members: dict[str, Member] = {}
        super().__init__(GroupCoordinator, settings, topics=topics or {"orders": 4})

    def restart(self) -> None:
        self.commit_all()
        self.reload()

    def _report(self, event: str, facts: dict[str, object]) -> None:
        assert event != "unexpected_error", facts
        super()._report(event, facts)

    @property
    def group(self) -> ConsumerGroup:
        group = self.machine.groups.find(GROUP)
        assert isinstance(group, ConsumerGroup)
        return group

    def heartbeat(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
        response = self.call(lambda machine: machine.consumer.heartbeat(request))
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response

    def refusal(self, request: ConsumerHeartbeatRequest) -> tuple[ErrorCode, str]:
        try:
            response = self.heartbeat(request)
        except ApiError as error:
            return error.code, error.message
        raise AssertionError(f"accepted: {response}")

    def join(self, name: str, topics: Iterable[str] | None = ("orders",), **fields: Any) -> "Member":
        member = self.members[name] = Member(self, name)
        member.join(topics, **fields)
        return member

    def settle(self, *names: str, rounds: int = 10) -> None:
        """Members send heartbeats, and follow what they are told, until nothing changes."""
        for _ in range(rounds):
            before = [(self.members[name].epoch, self.members[name].owned) for name in names or self.members]
            for name in names or self.members:
                self.members[name].heartbeat()
            if before == [(self.members[name].epoch, self.members[name].owned) for name in names or self.members]:
                return
        raise AssertionError("the members do not come to rest")


class Member:
    """A client that does what it should: it owns what it was told last."""

    def __init__(self, bench: ConsumerBench, name: str) -> None:
        self.bench = bench
        self.name = name
        self.epoch = 0
        self.instance_id: str | None = None
        self.owned: dict[bytes, frozenset[int]] = {}

    def join(self, topics: Iterable[str] | None = ("orders",), **fields: Any) -> ConsumerHeartbeatResponse:
        self.epoch, self.owned = 0, {}
        self.instance_id = fields.get("instance_id", self.instance_id)
        names = None if topics is None else list(topics)
        return self.send(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=names, owned={}, **fields)

    def heartbeat(self, **fields: Any) -> ConsumerHeartbeatResponse:
        return self.send(owned=self.owned, **fields)

    def send(self, **fields: Any) -> ConsumerHeartbeatResponse:
        response = self.bench.heartbeat(self.request(**fields))
        self.follow(response)
        return response

    def follow(self, response: ConsumerHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {topic: frozenset(partitions) for topic, partitions in response.assignment.items()}

    def request(self, **fields: Any) -> ConsumerHeartbeatRequest:
        return ConsumerHeartbeatRequest(
            GROUP, self.name, **{"member_epoch": self.epoch, "instance_id": self.instance_id, **fields}
        )

    def leave(self, epoch: int = -1) -> None:
        self.bench.heartbeat(self.request(member_epoch=epoch))
        self.bench.members.pop(self.name, None)

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return sorted(
            (topic.decode().rstrip("-"), partition) for topic, partitions in self.owned.items() for partition in partitions
        )

    def indexes(self) -> list[int]:
        """Of whichever topic."""
        return [partition for _, partition in self.partitions]
