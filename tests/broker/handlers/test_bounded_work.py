"""No request holds the event loop, however large it is, and whether its names exist or not.

The longest turn of the loop is measured in processor time, so that a busy machine does not matter. Another client waits for at
most one such turn, so its p99 is below the limit too.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.handlers.group_clients import find_coordinator
from tests.broker.handlers.share_client import VERSION, ShareMember, share_machine
from tests.broker.handlers.test_table import fields_for
from tests.broker.harness import FakeClient, Machine
from tests.broker.loop_watch import LoopWatch, watch_loop
from tests.broker.transactional import transactional_machine
from tests.log.harness import batch
from tidelog.broker.api import Api
from tidelog.broker.handlers import TABLE, TABLES
from tidelog.config.listeners import ListenerRole
from tidelog.wire.fetch import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from tidelog.wire.messages import Direction, encode_request, message_struct
from tidelog.wire.primitives import ELEMENTS_MAX
from tidelog.wire.produce import RECORDS_BYTES_MIN, ProducePartition, ProduceRequest, ProduceTopic, encode_produce_request
from tidelog.wire.protocol import ApiKey, request_header
from tidelog.wire.schema import Struct

TURN_MS_MAX = 50
ATTEMPTS_MAX = 4
# Of one element again and again. Of different ones there are as many as a request may have.
EQUAL_MAX = 6_000
OWN_CODECS = (ApiKey.PRODUCE, ApiKey.FETCH)
# What brokers and controllers serve to each other only.
BETWEEN_NODES = [
    (role, api)
    for role in (ListenerRole.INTER_BROKER, ListenerRole.CONTROLLER)
    for api in TABLES[role].values()
    if api is not TABLE.get(api.key)
]
PARTITIONS = 300
Path = tuple[str | int, ...]


@pytest.fixture(scope="module")
def machine() -> Machine:
    machine = transactional_machine()
    find_coordinator(machine.client(), "group")
    machine.client().append()
    return machine


def arrays_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """The places of all arrays, outer ones first."""
    if isinstance(value, list):
        yield path
        for index, element in enumerate(value):
            yield from arrays_in(element, (*path, index))
    elif isinstance(value, dict):
        for name, element in value.items():
            yield from arrays_in(element, (*path, name))


def _at(fields: Any, path: Path) -> Any:
    for step in path:
        fields = fields[step]
    return fields


def enlarged(fields: dict[str, Any], path: Path, count: int, is_distinct: bool) -> dict[str, Any]:
    """The same request with ``count`` elements in one of its arrays: the same one again and again, or different ones."""
    fields = copy.deepcopy(fields)
    array = _at(fields, path)
    array[:] = [_numbered(array[0], number) if is_distinct else array[0] for number in range(count)]
    return fields


def _numbered(element: Any, number: int) -> Any:
    """The first text, number or id of an element tells it from the others."""
    if isinstance(element, str):
        return f"{element}{number}"
    if isinstance(element, int):
        return number
    if isinstance(element, bytes):
        return number.to_bytes(16, "big")
    names = [name for name, value in element.items() if isinstance(value, str | int | bytes) and name != "resource_type"]
    return {**element, names[0]: _numbered(element[names[0]], number)} if names else element


def elements_in(fields: Any) -> int:
    if isinstance(fields, list):
        return len(fields) + sum(map(elements_in, fields))
    return sum(map(elements_in, fields.values())) if isinstance(fields, dict) else 0


def send(machine: Machine, watch: LoopWatch, api_key: int, version: int, body: bytes, role: ListenerRole) -> FakeClient:
    """Send one request, and run until it is answered or refused."""
    client = machine.client()
    client.session.apis = TABLES[role]
    frame = memoryview(bytearray(request_header(api_key, version, 1, "test") + body)).toreadonly()
    watch.timed(client.session.receive)(frame, 0)
    machine.run_until(lambda: (bool(client.replies) and client.session.wants_reading) or client.closed is not None)
    watch.timed(client.session.closed)()
    return client


def longest_turn_ms(machine: Machine, api_key: int, version: int, body: bytes, role: ListenerRole = ListenerRole.CLIENT) -> float:
    """The longest turn while the request is handled. On a busy machine the same work takes several times as long now and then,
    but a turn that is too long for its work is so at every attempt."""
    longest_ms = float("inf")
    for _ in range(ATTEMPTS_MAX):
        with watch_loop(machine) as watch:
            send(machine, watch, api_key, version, body, role)
        longest_ms = min(longest_ms, watch.longest_ms)
        if longest_ms < TURN_MS_MAX:
            break
    return longest_ms


def one_of_each(struct: Struct, version: int, is_flexible: bool) -> dict[str, Any]:
    """One element in each array of a message, and nothing else."""
    return {
        field.name: [one_of_each(field.type, version, is_flexible) if isinstance(field.type, Struct) else field.type.zero]
        for field in struct.fields
        if field.is_array and field.is_in(version, is_flexible)
    }


def requests_of(api: Api, template: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    version = api.versions[1]
    for path in [path for path in arrays_in(template) if _at(template, path)]:
        one = enlarged(template, path, 1, is_distinct=False)
        per_element = elements_in(enlarged(template, path, 2, is_distinct=False)) - elements_in(one)
        for is_distinct, elements in ((True, api.elements_max), (False, min(api.elements_max, EQUAL_MAX))):
            count = (elements - elements_in(one)) // per_element
            fields = enlarged(template, path, count, is_distinct)
            yield f"{count} {'different' if is_distinct else 'equal'} {path[-1]}", encode_request(api.key, version, fields)


@pytest.mark.parametrize("api", [api for api in TABLE.values() if api.key not in OWN_CODECS], ids=lambda api: api.name)
def test_a_large_request_leaves_the_loop_to_others(machine: Machine, api: Api) -> None:
    version = api.versions[1]
    for what, body in requests_of(api, fields_for(api, version)):
        assert longest_turn_ms(machine, api.key, version, body) < TURN_MS_MAX, what


@pytest.mark.parametrize(("role", "api"), BETWEEN_NODES, ids=lambda value: getattr(value, "name", ""))
def test_a_large_request_of_another_node_leaves_the_loop_to_others(machine: Machine, role: ListenerRole, api: Api) -> None:
    version = api.versions[1]
    struct, _, is_flexible = message_struct(api.key, version, Direction.REQUEST)
    for what, body in requests_of(api, one_of_each(struct, version, is_flexible)):
        assert longest_turn_ms(machine, api.key, version, body, role) < TURN_MS_MAX, what


def test_share_fetches_of_partitions_that_exist_leave_the_loop_to_others() -> None:
    machine, _, topic_id = share_machine(partitions=PARTITIONS)
    member = ShareMember(machine, "member", topic_id, range(PARTITIONS))
    member.join()
    for partition in range(PARTITIONS):
        machine.broker.partitions.find("orders", None, partition).append(batch(1), True)
    for is_first in (True, False):
        fields = member.fetch_fields(max_records=2**31 - 1, max_bytes=2**31 - 1, min_bytes=1 if is_first else 2**31 - 1)
        body = encode_request(ApiKey.SHARE_FETCH, VERSION, {**fields, "share_session_epoch": 0, "topics": member.topics()})
        assert longest_turn_ms(machine, ApiKey.SHARE_FETCH, VERSION, body) < TURN_MS_MAX


@pytest.mark.parametrize("is_distinct", [False, True], ids=["equal", "different"])
def test_a_fetch_of_many_partitions_leaves_the_loop_to_others(machine: Machine, is_distinct: bool) -> None:
    wanted = [FetchPartition(number if is_distinct else 0, 0, 1 << 20) for number in range(ELEMENTS_MAX - 1)]
    request = FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, [FetchTopic("orders", None, wanted)], [], "")
    assert longest_turn_ms(machine, ApiKey.FETCH, 12, encode_fetch_request(12, request)) < TURN_MS_MAX


@pytest.mark.parametrize("what", ["equal", "different", "existing"])
def test_a_produce_of_many_partitions_leaves_the_loop_to_others(what: str) -> None:
    machine = Machine()
    machine.client().create_topic("orders", PARTITIONS)
    # As many as a frame may have whose records are no longer than the header of a batch.
    count = PARTITIONS if what == "existing" else ELEMENTS_MAX - 1
    records = memoryview(batch(1) if what == "existing" else bytes(RECORDS_BYTES_MIN))
    data = [ProducePartition(0 if what == "equal" else number, records) for number in range(count)]
    body = encode_produce_request(9, ProduceRequest(None, -1, 1000, [ProduceTopic("orders", None, data)]))
    assert longest_turn_ms(machine, ApiKey.PRODUCE, 9, body) < TURN_MS_MAX


def test_elections_and_creations_by_the_thousand_leave_the_loop_to_others() -> None:
    machine = Machine()
    for number in range(5):
        machine.client().create_topic(f"topic-{number}", 1_990)
    everything = encode_request(ApiKey.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": None, "timeout_ms": 30_000})
    assert longest_turn_ms(machine, ApiKey.ELECT_LEADERS, 2, everything) < TURN_MS_MAX / 4
    new = [{"name": f"new-{number}", "num_partitions": 1, "replication_factor": 1} for number in range(1_990)]
    creations = encode_request(ApiKey.CREATE_TOPICS, 7, {"topics": new, "timeout_ms": 30_000, "validate_only": True})
    assert longest_turn_ms(machine, ApiKey.CREATE_TOPICS, 7, creations) < TURN_MS_MAX
