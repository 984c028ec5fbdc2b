"""Members of the classic protocol beside those of KIP-848, on one bench."""

from collections.abc import Sequence
from typing import Any

from tests.groups.consumer.bench import GROUP, ConsumerBench
from tidelog.groups.classic.requests import JoinRequest, JoinResponse, LeaveResult, LeavingMember, SyncRequest, SyncResponse
from tidelog.groups.consumer_protocol import decode_assignment, encode_assignment
from tidelog.wire.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 20_000


def subscription(topics: Sequence[str], owned: dict[str, tuple[int, ...]] | None = None) -> bytes:
    """Version 1."""
    parts = [b"\0\x01", len(topics).to_bytes(4, "big")]
    for topic in topics:
        parts += [len(topic).to_bytes(2, "big"), topic.encode()]
    # An assignment without its version is what a subscription has of what is owned; user data before it, none after.
    return b"".join(parts) + b"\xff\xff\xff\xff" + encode_assignment(owned or {}, 1)[2:-4]


class ClassicClient:
    """``joined`` and ``synced`` are the answers that have come."""

    def __init__(
        self, bench: ConsumerBench, topics: Sequence[str] = ("orders",), instance_id: str | None = None, *, is_eager: bool = False
    ) -> None:
        self.bench = bench
        self.topics = topics
        self.instance_id = instance_id
        self.is_eager = is_eager
        self.member_id = ""
        self.generation = -1
        self.owned: dict[str, tuple[int, ...]] = {}
        self.joined: list[JoinResponse] = []
        self.synced: list[SyncResponse] = []

    def ask_to_join(self, **fields: Any) -> None:
        """The answer may come later, in ``joined``."""
        if self.is_eager:
            self.owned = {}
        request = JoinRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id="classic",
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", subscription(self.topics, self.owned)),),
            requires_known_member_id=False,
            supports_skipping_assignment=True,
        )._replace(**fields)
        self._ask(lambda machine: machine.classic.join(request, self._on_joined), self._on_joined)

    def _ask(self, decide: Any, on_done: Any) -> None:
        self.bench.shard.write(decide, on_done)
        self.bench.commit_all()

    def _on_joined(self, response: JoinResponse | None, error: Exception | None) -> None:
        assert error is None, error
        if response is not None:
            self.joined.append(response)
            if response.error is ErrorCode.NONE:
                self.member_id, self.generation = response.member_id, response.generation

    def ask_to_sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> None:
        request = SyncRequest(GROUP, self.member_id, self.instance_id, self.generation, "consumer", "range", assignments or {})
        request = request._replace(**fields)
        self._ask(lambda machine: machine.classic.sync(request, self._on_synced), self._on_synced)

    def _on_synced(self, response: SyncResponse | None, error: Exception | None) -> None:
        assert error is None, error
        if response is not None:
            self.synced.append(response)
            if response.error is ErrorCode.NONE:
                self.owned = dict(decode_assignment(response.assignment).partitions)

    def join(self) -> ErrorCode:
        """Join and sync, as a member of a consumer group, which never leads."""
        self.ask_to_join()
        if self.joined[-1].error is ErrorCode.NONE:
            self.ask_to_sync()
            return self.synced[-1].error
        return self.joined[-1].error

    def heartbeat(self) -> ErrorCode:
        code = self.bench.call(
            lambda machine: machine.classic.heartbeat(GROUP, self.member_id, self.instance_id, self.generation)
        )
        assert isinstance(code, ErrorCode)
        return code

    def live(self) -> None:
        """What a client does at a heartbeat's time."""
        if self.heartbeat() is not ErrorCode.NONE:
            self.join()

    def leave(self) -> list[LeaveResult]:
        leaving = [LeavingMember(self.member_id, self.instance_id)]
        results = self.bench.call(lambda machine: machine.classic.leave(GROUP, leaving))
        assert isinstance(results, list)
        return results


def classic_group(bench: ConsumerBench, *clients: ClassicClient, assignments: Sequence[dict[str, tuple[int, ...]]]) -> None:
    """A stable classic group, whose leader gives each client its share."""
    for client in clients:
        client.ask_to_join()
        bench.run_for(1)
    while len({client.generation for client in clients}) > 1 or any(not client.joined for client in clients):
        for client in clients:
            if client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
                client.ask_to_join()
        bench.run_for(1)
    leader = next(client for client in clients if client.joined[-1].leader == client.member_id)
    shares = {client.member_id: encode_assignment(share, 1) for client, share in zip(clients, assignments, strict=True)}
    for client in clients:
        if client is not leader:
            client.ask_to_sync()
    leader.ask_to_sync(shares)
    assert [client.owned for client in clients] == list(assignments)
