from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey

EXACT, DEFAULT, ANY = 0, 1, 2
ENTITIES: list[dict[str, str | None]] = [
    {"client-id": "a"},
    {"client-id": None},
    {"user": "u"},
    {"user": "u", "client-id": "a"},
    {"ip": None},
]


def entity_fields(entity: dict[str, str | None]) -> list[dict[str, str | None]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]


@pytest.fixture
def client() -> FakeClient:
    client = Machine().client()
    entries = []
    for entity in ENTITIES:
        key = "connection_creation_rate" if "ip" in entity else "request_percentage"
        entries.append({"entity": entity_fields(entity), "ops": [{"key": key, "value": 7.0, "remove": False}]})
    answer = client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=entries, validate_only=False)
    assert [entry.error_code for entry in answer.entries] == [0] * len(ENTITIES)
    return client


def describe(client: FakeClient, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    fields = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=fields, strict=strict)


def found(client: FakeClient, *components: tuple[str, int, str | None], strict: bool = False) -> list[dict[str, str | None]]:
    answer = describe(client, *components, strict=strict)
    assert answer.error_code == 0, answer.error_message
    return [{part.entity_type: part.entity_name for part in entry.entity} for entry in answer.entries]


def test_values_are_those_that_were_set(client: FakeClient) -> None:
    (entry,) = describe(client, ("ip", DEFAULT, None)).entries
    assert [(value.key, value.value) for value in entry.values] == [("connection_creation_rate", 7.0)]


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, ENTITIES),
        ([], True, []),
        ([("client-id", ANY, None)], False, [ENTITIES[0], ENTITIES[1], ENTITIES[3]]),
        ([("client-id", ANY, None)], True, [ENTITIES[0], ENTITIES[1]]),
        ([("client-id", EXACT, "a")], False, [ENTITIES[0], ENTITIES[3]]),
        ([("client-id", DEFAULT, None)], True, [ENTITIES[1]]),
        ([("user", EXACT, "u"), ("client-id", ANY, None)], True, [ENTITIES[3]]),
        ([("user", EXACT, "v")], False, []),
        ([("ip", ANY, None)], True, [ENTITIES[4]]),
    ],
)
def test_the_filter(client: FakeClient, components: Any, strict: bool, expected: list[dict[str, str | None]]) -> None:
    assert found(client, *components, strict=strict) == expected


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("group", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "u")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "u")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_makes_no_sense(client: FakeClient, components: Any, code: ErrorCode) -> None:
    answer = describe(client, *components)
    assert answer.error_code == code
    assert answer.error_message
    assert answer.entries is None
