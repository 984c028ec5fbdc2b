"""Members of a classic group, each on a connection of its own, whose requests may wait."""

from typing import Any

from tests.broker.handlers.group_clients import subscription
from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

GROUP = "g"


class Waiting:
    """A request on its way."""

    def __init__(self, client: FakeClient, api_key: int, version: int, fields: dict[str, Any]) -> None:
        self._client, self._api_key, self._version = client, api_key, version
        self._count = len(client.replies)
        self._correlation_id = client.send(api_key, version, encode_request(api_key, version, fields))

    @property
    def is_answered(self) -> bool:
        return len(self._client.replies) > self._count

    def answer(self) -> DecodedMessage:
        self._client.machine.run_until(lambda: self.is_answered)
        frame, position = self._client.last_reply(self._api_key, self._version, self._correlation_id)
        return decode_response(self._api_key, self._version, frame, position)


class Member:
    def __init__(self, machine: Machine, *topics: str, instance: str | None = None, version: int = 9) -> None:
        self.client = machine.client()
        self.machine = machine
        self.instance = instance
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.metadata = subscription(*topics)

    def send_join(self, **fields: Any) -> Waiting:
        asked: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": self.metadata}],
        }
        return Waiting(self.client, ApiKey.JOIN_GROUP, self.version, asked | fields)

    def begin_join(self, **fields: Any) -> Waiting:
        """With an id of its own, if it needs one first."""
        if self.version >= 4 and self.instance is None and not self.member_id:
            answer = self.send_join(**fields).answer()
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.member_id = answer.member_id
        return self.send_join(**fields)

    def joined(self, waiting: Waiting) -> DecodedMessage:
        answer = waiting.answer()
        assert answer.error_code == ErrorCode.NONE, answer
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def send_sync(self, assignments: dict[str, bytes] | None = None, version: int = 5, **fields: Any) -> Waiting:
        asked: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": name, "assignment": data} for name, data in (assignments or {}).items()],
        }
        return Waiting(self.client, ApiKey.SYNC_GROUP, version, asked | fields)

    def heartbeat(self, version: int = 4, **fields: Any) -> int:
        asked: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        code: int = self.client.call(ApiKey.HEARTBEAT, version, **asked | fields).error_code
        return code


def stable_group(machine: Machine, count: int = 2, *, is_static: bool = False) -> list[Member]:
    """The leader first; each is assigned its own id."""
    members = [Member(machine, "orders", instance=f"i{number}" if is_static else None) for number in range(count)]
    answers = [member.joined(waiting) for member, waiting in [(member, member.begin_join()) for member in members]]
    while len({answer.generation_id for answer in answers}) > 1:
        answers = [member.joined(waiting) for member, waiting in [(member, member.begin_join()) for member in members]]
    members.sort(key=lambda member: member.member_id != answers[0].leader)
    waiting = [member.send_sync() for member in members[1:]]
    waiting.append(members[0].send_sync({member.member_id: member.member_id.encode() for member in members}))
    assert [sync.answer().error_code for sync in waiting] == [ErrorCode.NONE] * count
    return members
