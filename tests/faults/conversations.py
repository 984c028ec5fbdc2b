"""Whole conversations with a broker, each with one thing wrong in it.

A conversation is what a client does from its first request to its last: a producer of each kind, a member of a group, a reader,
an administrator. Every request uses what the answers before it said: producer ids, epochs, members, offsets. In one of the
requests one thing is changed: one field of the message, one bit or one count of a record batch under a checksum that is right
again, the version, or one bit of the frame. What follows in the conversation is written by a client that does not know.

A seed makes the same conversation again. ``Slip`` has the frame that was changed, so a failure can name it.
"""

import struct
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fastcrc.crc32 import iscsi as crc32c

from tests.faults.peers import Peer, frame
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.header import CRC_POSITION
from tidelog.records.record import Record
from tidelog.testing import Broker
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

TOPICS = ("fuzz-plain", "fuzz-compacted", "fuzz-transactional", "fuzz-new")
PARTITIONS = 2
# A changed field may ask the broker to wait for as long as it likes; these requests are left alone after a moment.
WAIT_AT_WILL = {
    ApiKey.FETCH,
    ApiKey.SHARE_FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
}
WAIT_SECONDS = 0.3
INTEGERS = (0, 1, -1, -2, 2, 127, 128, 32_767, -32_768, 65_536, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
TEXTS = ("", "x", "x" * 300, "..", "a/b", "\x00", "é", *TOPICS)
# Positions and widths of the numbers in a batch's header that the checksum covers, and of the two that it does not.
HEADER_NUMBERS = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))

Step = tuple[ApiKey, int, dict[str, Any]]
# Yields requests and receives answers; None: the answer cannot be read, or an error made the connection end.
Script = Generator[Step, DecodedMessage | None, None]


@dataclass(slots=True)
class Slip:
    """What was changed, for the report of a failure."""

    seed: int
    script: str
    what: str = "nothing"
    request: bytes = b""

    def describe(self) -> str:
        return f"seed {self.seed}, {self.script}: {self.what}; the frame was {self.request.hex()}"


class EndOfConversation(Exception):
    """The answer has not what this client looks for, so it has nothing more to say."""


class Hangs(AssertionError):
    """No answer came, and the connection did not end."""


@dataclass(slots=True)
class Conversation:
    broker: Broker
    seed: int
    slip: Slip = field(init=False)
    _random: Random = field(init=False)
    _is_bit: bool = False

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self.slip = Slip(self.seed, "")

    def run(self) -> None:
        make = self._random.choice(SCRIPTS)
        self.slip.script = make.__name__
        # Most conversations are shorter than ten requests; the slip is in one of the first that there are.
        slip_at = self._random.randrange(8)
        script = make(self._random)
        with Peer(self.broker) as peer:
            answer: DecodedMessage | None = None
            number = 0
            while True:
                try:
                    key, version, fields = script.send(answer) if number else next(script)
                except (StopIteration, EndOfConversation):
                    return
                request = self._request(key, version, fields, number, number == slip_at)
                if not peer.send(frame(request)):
                    return
                # A flipped bit may make it another request; and acks=0 asks for no answer.
                may_wait = number >= slip_at and (key in WAIT_AT_WILL or self._is_bit or fields.get("acks") == 0)
                is_open, answer = self._answer(peer, key, version, may_wait)
                if not is_open:
                    return
                number += 1

    def _answer(self, peer: Peer, key: ApiKey, version: int, may_wait: bool) -> tuple[bool, DecodedMessage | None]:
        """(Whether the conversation goes on, the answer if it can be read.)"""
        try:
            response = peer.read_response_within(WAIT_SECONDS) if may_wait else peer.read_response()
        except TimeoutError:
            if may_wait:
                return False, None
            raise Hangs(self.slip.describe()) from None
        if response is None:
            return False, None
        try:
            _, position = parse_response_header(key, version, memoryview(response))
            return True, decode_response(key, version, memoryview(response), position)
        except Exception:
            if self.slip.request:
                return True, None  # An answer in another version, to a request in another version.
            raise

    def _request(self, key: ApiKey, version: int, fields: dict[str, Any], number: int, is_slip: bool) -> bytes:
        header = request_header(key, version, number, "fuzz")
        if not is_slip:
            return header + encode_request(key, version, fields)
        kind = self._random.choice(("field", "field", "field", "batch", "version", "bit"))
        batches = [place for place in _leaves(fields) if place[-1] == "records"]
        if kind == "batch" and batches:
            self.slip.what = "a batch: " + _change(fields, batches[0], lambda batch: changed_batch(batch, self._random))
        elif kind == "version":
            version = self._random.choice((version - 1, version + 1, 0, 32_767))
            self.slip.what = f"version {version} of {key.name}"
            header = request_header(key, max(version, 0), number, "fuzz")
            request = header + encode_request(key, _nearest(key, version), fields)
            self.slip.request = request
            return request
        elif kind == "bit":
            request = header + encode_request(key, version, fields)
            changed = _flip_bit(request, self._random.randrange(len(request) * 8))
            self.slip.what, self.slip.request, self._is_bit = f"one bit of {key.name}", changed, True
            return changed
        else:
            self._change_field(key, version, fields)
        request = header + encode_request(key, version, fields)
        self.slip.request = request
        return request

    def _change_field(self, key: ApiKey, version: int, fields: dict[str, Any]) -> None:
        places = list(_leaves(fields))
        # Not every value fits into every field: then another is tried.
        for _ in range(20):
            place = self._random.choice(places) if places else ()
            if not place:
                return
            original = _get(fields, place)
            what = _change(fields, place, lambda value: changed_value(value, self._random))
            try:
                encode_request(key, version, fields)
            except Exception:
                _change(fields, place, lambda _: original)  # noqa: B023 - called at once
            else:
                self.slip.what = f"a field of {key.name} {version}: {what}"
                return


# -- one thing changed --------------------------------------------------------------------------------------------------------


def changed_value(value: Any, random: Random) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return random.choice((*INTEGERS, value + 1, value - 1))
        case str():
            return random.choice((*TEXTS, None))
        case bytes():
            return random.choice(
                (b"", None, value[: len(value) // 2], value * 2, _flip_bit(value, random.randrange(len(value) * 8 or 1)))
            )
        case list():
            return random.choice(([], value * 2, value * 100, None))
        case _:
            return random.choice((0, "", b""))


def changed_batch(batch: bytes, random: Random) -> bytes:
    """One bit, or one number of its header; the checksum is right again."""
    changed = bytearray(batch)
    if random.random() < 0.5:
        position, width = random.choice(HEADER_NUMBERS)
        old = int.from_bytes(batch[position : position + width], "big", signed=True)
        new = random.choice((*INTEGERS, old + 1, old - 1, old * 2))
        changed[position : position + width] = (new % (1 << 8 * width)).to_bytes(width, "big")
    else:
        position = random.randrange(CRC_POSITION + 4, len(batch))
        changed[position] ^= 1 << random.randrange(8)
    struct.pack_into(">I", changed, CRC_POSITION, crc32c(bytes(changed[CRC_POSITION + 4 :])))
    return bytes(changed)


def _flip_bit(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


Path = tuple[str | int, ...]


def _leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every field, and every list as a whole."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    elif isinstance(value, list):
        yield path
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*path, number))
    else:
        yield path


def _get(fields: Any, path: Path) -> Any:
    for part in path:
        fields = fields[part]
    return fields


def _change(fields: Any, path: Path, change: Callable[[Any], Any]) -> str:
    parent = _get(fields, path[:-1])
    old = parent[path[-1]]
    parent[path[-1]] = new = change(old)
    return f"{'.'.join(map(str, path))} from {str(old)[:60]} to {str(new)[:60]}"


def _nearest(key: ApiKey, version: int) -> int:
    from tidelog.broker.handlers import TABLE

    low, high = TABLE[key].versions
    return min(max(version, low), high)


# -- conversations ------------------------------------------------------------------------------------------------------------


def _batch(random: Random, count: int, **settings: Any) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    compression = random.choice(list(CompressionType))
    records = [
        Record(number, now_ms, b"key-%d" % random.randrange(10), random.randbytes(random.randrange(100)))
        for number in range(count)
    ]
    return build_batch(records, compression=compression, **settings)


def _produce(topic: str, partition: int, records: bytes, transactional_id: str | None = None) -> Step:
    partitions = [{"index": partition, "records": records}]
    fields = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 5000,
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }
    return ApiKey.PRODUCE, 9, fields


def plain_producer(random: Random) -> Script:
    yield ApiKey.API_VERSIONS, 3, {"client_software_name": "fuzz", "client_software_version": "1"}
    yield ApiKey.METADATA, 9, _metadata(*TOPICS[:2])
    for _ in range(6):
        yield _produce(random.choice(TOPICS[:2]), random.randrange(PARTITIONS), _batch(random, random.randrange(1, 6)))


def idempotent_producer(random: Random) -> Script:
    yield ApiKey.METADATA, 9, _metadata(TOPICS[0])
    init = _readable((yield ApiKey.INIT_PRODUCER_ID, 4, _init(None)))
    sequence = 0
    for _ in range(6):
        count = random.randrange(1, 6)
        ids = {"producer_id": init.producer_id, "producer_epoch": init.producer_epoch, "base_sequence": sequence}
        yield _produce(TOPICS[0], 0, _batch(random, count, **ids))
        sequence += count


def transactional_producer(random: Random) -> Script:
    name = f"fuzz-{random.randrange(5)}"
    yield ApiKey.FIND_COORDINATOR, 3, {"key": name, "key_type": 1}
    init = _readable((yield ApiKey.INIT_PRODUCER_ID, 4, _init(name)))
    ids = {"producer_id": init.producer_id, "producer_epoch": init.producer_epoch}
    who = {"transactional_id": name, **ids}
    sequence = 0
    for _ in range(2):
        topics = [{"name": TOPICS[2], "partitions": [0]}]
        yield ApiKey.ADD_PARTITIONS_TO_TXN, 3, {"v3_and_below_transactional_id": name, **_v3(ids), "v3_and_below_topics": topics}
        count = random.randrange(1, 6)
        yield _produce(TOPICS[2], 0, _batch(random, count, base_sequence=sequence, transactional=True, **ids), name)
        sequence += count
        yield ApiKey.ADD_OFFSETS_TO_TXN, 3, {**who, "group_id": "fuzz-group"}
        committed = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}]
        offsets = {**who, "group_id": "fuzz-group", "generation_id": -1, "member_id": "", "group_instance_id": None}
        yield ApiKey.TXN_OFFSET_COMMIT, 3, {**offsets, "topics": [{"name": TOPICS[0], "partitions": committed}]}
        yield ApiKey.END_TXN, 3, {**who, "committed": random.random() < 0.5}


def group_member(random: Random) -> Script:
    group = f"fuzz-group-{random.randrange(5)}"
    yield ApiKey.FIND_COORDINATOR, 3, {"key": group, "key_type": 0}
    member = ""
    joined: DecodedMessage | None = None
    for _ in range(2):
        protocols = [{"name": "range", "metadata": random.randbytes(20)}]
        times = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 1000}
        who = {"group_id": group, "member_id": member, "group_instance_id": None}
        joined = _readable((yield ApiKey.JOIN_GROUP, 7, {**who, **times, "protocol_type": "consumer", "protocols": protocols}))
        member = joined.member_id
    joined = _readable(joined)
    who = {"group_id": group, "generation_id": joined.generation_id, "member_id": member, "group_instance_id": None}
    assignments = [{"member_id": member, "assignment": random.randbytes(20)}]
    yield ApiKey.SYNC_GROUP, 5, {**who, "protocol_type": "consumer", "protocol_name": "range", "assignments": assignments}
    yield ApiKey.HEARTBEAT, 4, who
    committed = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "m"}]
    commit = {"group_id": group, "member_id": member, "generation_id_or_member_epoch": joined.generation_id}
    yield ApiKey.OFFSET_COMMIT, 8, {**commit, "topics": [{"name": TOPICS[0], "partitions": committed}]}
    wanted = [{"group_id": group, "topics": [{"name": TOPICS[0], "partition_indexes": [0, 1]}]}]
    yield ApiKey.OFFSET_FETCH, 8, {"groups": wanted, "require_stable": True}
    yield ApiKey.LEAVE_GROUP, 4, {"group_id": group, "members": [{"member_id": member, "group_instance_id": None}]}


def group_member_of_the_new_protocol(random: Random) -> Script:
    group = f"fuzz-new-group-{random.randrange(5)}"
    fields = {
        "group_id": group,
        "member_id": random.randbytes(12).hex(),
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": [TOPICS[0]],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    for _ in range(4):
        answer = _readable((yield ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, dict(fields)))
        fields["member_epoch"] = answer.member_epoch
    yield ApiKey.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": [group], "include_authorized_operations": False}
    yield ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, {**fields, "member_epoch": -1}


def member_of_a_share_group(random: Random) -> Script:
    """It settles some of what it was given, and goes away with the rest."""
    topic = random.choice(TOPICS[:3])
    found = _readable((yield ApiKey.METADATA, 12, {**_metadata(topic), "topics": [{"topic_id": bytes(16), "name": topic}]}))
    if not found.topics:
        raise EndOfConversation
    member = {"group_id": f"fuzz-share-{random.randrange(3)}", "member_id": random.randbytes(12).hex()}
    earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": member["group_id"], "configs": [earliest]}
    yield ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
    beat = {**member, "member_epoch": 0, "rack_id": None, "subscribed_topic_names": [topic]}
    yield ApiKey.FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": [member["group_id"]]}
    for _ in range(5):
        # The coordinator may still be loading, the first time.
        answer = _readable((yield ApiKey.SHARE_GROUP_HEARTBEAT, 1, beat))
        if not answer.error_code:
            break
    yield _produce(topic, 0, _batch(random, random.randrange(1, 20)))
    limits = {"max_wait_ms": 50, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 50, "batch_size": 10}
    acquired: list[DecodedMessage] = []
    for epoch in range(4):
        batches = [
            {
                "first_offset": each.first_offset,
                "last_offset": each.last_offset,
                "acknowledge_types": [random.randrange(1, 4) for _ in range(each.last_offset - each.first_offset + 1)],
            }
            for each in acquired
        ]
        partitions = [{"partition_index": 0, "acknowledgement_batches": batches}]
        topics = [{"topic_id": found.topics[0].topic_id, "partitions": partitions}]
        session = {**member, "share_session_epoch": epoch, "is_renew_ack": False, "topics": topics}
        fetch = {**session, **limits, "share_acquire_mode": random.randrange(2), "forgotten_topics_data": []}
        is_fetch = epoch == 0 or random.random() < 0.7
        key, fields = (ApiKey.SHARE_FETCH, fetch) if is_fetch else (ApiKey.SHARE_ACKNOWLEDGE, session)
        fetched = _readable((yield key, 2, fields))
        answered = [each for response in fetched.responses for each in response.partitions] if is_fetch else []
        acquired = [each for partition in answered for each in partition.acquired_records]
    asked = [{"group_id": member["group_id"], "topics": [{"topic_name": topic, "partitions": [0, 1]}]}]
    yield ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": asked}
    yield ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": [member["group_id"]], "include_authorized_operations": False}
    yield ApiKey.SHARE_GROUP_HEARTBEAT, 1, {**beat, "member_epoch": random.choice((answer.member_epoch, -1))}


def reader(random: Random) -> Script:
    topic = random.choice(TOPICS[:3])
    wanted = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": random.choice((-1, -2, -3, 1))}]
    yield ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 1, "topics": [{"name": topic, "partitions": wanted}]}
    session, epoch = 0, 0
    for number in range(4):
        place = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": number,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
        }
        fields = {
            "replica_id": -1,
            "max_wait_ms": 10,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": random.randrange(2),
            "session_id": session,
            "session_epoch": epoch,
            "topics": [{"topic": topic, "partitions": [{**place, "partition_max_bytes": 1 << 16}]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        answer = _readable((yield ApiKey.FETCH, 12, fields))
        session, epoch = answer.session_id, epoch + 1
    epochs = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    yield ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": [{"topic": topic, "partitions": epochs}]}


def administrator(random: Random) -> Script:
    made = {"name": TOPICS[3], "num_partitions": 2, "replication_factor": 1, "assignments": []}
    configs = [{"name": "retention.ms", "value": "1000000"}]
    yield ApiKey.CREATE_TOPICS, 7, {"topics": [{**made, "configs": configs}], "timeout_ms": 5000, "validate_only": False}
    topics = [{"name": TOPICS[3], "count": 3, "assignments": None}]
    yield ApiKey.CREATE_PARTITIONS, 3, {"topics": topics, "timeout_ms": 5000, "validate_only": False}
    resources = [{"resource_type": 2, "resource_name": TOPICS[3], "configuration_keys": None}]
    yield ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources, "include_synonyms": True, "include_documentation": True}
    changes = [{"name": "segment.bytes", "config_operation": 0, "value": "1048576"}]
    resources = [{"resource_type": 2, "resource_name": TOPICS[3], "configs": changes}]
    yield ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False}
    yield _produce(TOPICS[3], 0, _batch(random, 3))
    yield (
        ApiKey.DELETE_RECORDS,
        2,
        {"topics": [{"name": TOPICS[3], "partitions": [{"partition_index": 0, "offset": 1}]}], "timeout_ms": 5000},
    )
    yield ApiKey.DELETE_TOPICS, 5, {"topic_names": [TOPICS[3]], "timeout_ms": 5000}


def _readable(answer: DecodedMessage | None) -> DecodedMessage:
    if answer is None:
        raise EndOfConversation
    return answer


def _metadata(*names: str) -> dict[str, Any]:
    return {
        "topics": [{"name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def _init(name: str | None) -> dict[str, Any]:
    return {"transactional_id": name, "transaction_timeout_ms": 10_000, "producer_id": -1, "producer_epoch": -1}


def _v3(ids: dict[str, Any]) -> dict[str, Any]:
    return {f"v3_and_below_{name}": value for name, value in ids.items()}


SCRIPTS: tuple[Callable[[Random], Script], ...] = (
    plain_producer,
    plain_producer,
    idempotent_producer,
    transactional_producer,
    group_member,
    group_member_of_the_new_protocol,
    member_of_a_share_group,
    reader,
    administrator,
)
