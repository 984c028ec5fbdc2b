from typing import Any

from tests.broker.harness import FakeClient, Machine
from tidelog.metadata.client_quotas import quota_entity
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def alter(client: FakeClient, *entries: dict[str, Any], validate_only: bool = False, version: int = 1) -> list[tuple[int, Any]]:
    answer = client.call(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=list(entries), validate_only=validate_only)
    return [(entry.error_code, [(part.entity_type, part.entity_name) for part in entry.entity]) for entry in answer.entries]


def entry(name: str | None, value: float, *, remove: bool = False) -> dict[str, Any]:
    ops = [{"key": "producer_byte_rate", "value": value, "remove": remove}]
    return {"entity": [{"entity_type": "client-id", "entity_name": name}], "ops": ops}


def test_each_entity_is_answered_as_it_was_named() -> None:
    machine = Machine()
    answers = alter(machine.client(), entry("a", 5.0), entry(None, 0.0), version=0)
    assert answers == [(0, [("client-id", "a")]), (ErrorCode.INVALID_REQUEST, [("client-id", None)])]
    assert machine.broker.image.client_quotas.find(quota_entity([("client-id", "a")])) == {"producer_byte_rate": 5.0}
    assert alter(machine.client(), entry("a", 0.0, remove=True)) == [(0, [("client-id", "a")])]
    assert len(machine.broker.image.client_quotas) == 0


def test_validate_only() -> None:
    machine = Machine()
    assert alter(machine.client(), entry("a", 5.0), validate_only=True) == [(0, [("client-id", "a")])]
    assert len(machine.broker.image.client_quotas) == 0
