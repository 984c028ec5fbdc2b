"""Requests and responses by kio's definitions: golden bytes, Kafka's oddities, and every message of every API and version."""

import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.codec_checks import check_mutations
from tests.wire.kio_messages import api_keys, bytes_with_unknown_tags, chance_message, kio_bytes, message_classes
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import (
    DecodedMessage,
    Direction,
    Fields,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    field_in_any_version,
    message_reader,
    message_struct,
    message_writer,
    plain_fields,
    versions,
)
from tidelog.wire.own_fields import OWN_FIELDS
from tidelog.wire.primitives import ELEMENTS_MAX, Reader, write_compact_length
from tidelog.wire.protocol import ApiKey, RequestHeader, parse_request_header, request_header
from tidelog.wire.schema import Field, Struct

MESSAGES_PER_VERSION = 6
# What a frame of some hundred bytes may take at most while it is decoded.
SMALL_FRAME_MEMORY_MAX = 200_000
BUDGET_SECONDS = 0.5


def read(api_key: int, version: int, direction: Direction, data: bytes) -> tuple[DecodedMessage, int]:
    reader = Reader(memoryview(data))
    return message_reader(api_key, version, direction)(reader), reader.position


def write(api_key: int, version: int, direction: Direction, values: Fields) -> bytes:
    out = bytearray()
    message_writer(api_key, version, direction)(out, values)
    return bytes(out)


def plain(value: Any) -> Any:
    """Without the fields that kio does not know, because they are Tidelog's own."""
    if isinstance(value, DecodedMessage):
        own = {field.name for field in OWN_FIELDS.get((value._origin.api_key, value._origin.direction, value._origin.path), ())}
        return {name: plain(field) for name, field in vars(value).items() if name not in own}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def every_message(direction: Direction) -> Iterator[tuple[tuple[int, int, Direction], type[Any], random.Random]]:
    """(api key, version, direction), kio's class, and randomness that each API has of its own."""
    for api_key in api_keys():
        chance = random.Random(api_key)
        for version, message_class in message_classes(api_key, direction):
            yield (api_key, version, direction), message_class, chance


@pytest.mark.parametrize("direction", Direction)
class TestEveryMessage:
    def test_is_read_and_written_as_by_kio(self, direction: Direction) -> None:
        for which, message_class, chance in every_message(direction):
            for _ in range(MESSAGES_PER_VERSION):
                message = chance_message(message_class, chance)
                data = kio_bytes(message)
                found, position = read(*which, data + b"trailing")
                assert plain(found) == plain_fields(message), which
                assert position == len(data), which
                assert write(*which, plain_fields(message)) == data, which

    def test_of_defaults_can_be_read_back_and_written_again(self, direction: Direction) -> None:
        for which, _, _ in every_message(direction):
            data = write(*which, {})
            message, position = read(*which, data)
            assert position == len(data), which
            assert write(*which, message) == data, which

    def test_ignores_unknown_tagged_fields_at_every_depth(self, direction: Direction) -> None:
        for which, message_class, chance in every_message(direction):
            for _ in range(MESSAGES_PER_VERSION if message_class.__flexible__ else 0):
                message = chance_message(message_class, chance)
                data = bytes_with_unknown_tags(message)
                assert len(data) > len(kio_bytes(message)), which
                found, position = read(*which, data)
                assert plain(found) == plain_fields(message), which
                assert position == len(data), which

    def test_cut_anywhere_it_is_malformed(self, direction: Direction) -> None:
        for which, message_class, chance in every_message(direction):
            data = kio_bytes(chance_message(message_class, chance))
            for length in {chance.randrange(len(data)) for _ in range(10)} if data else ():
                with pytest.raises(MalformedRequest):
                    pytest.fail(f"{which} cut at {length}: {read(*which, data[:length])}")

    def test_large_claims_take_little_memory(self, direction: Direction) -> None:
        """Every place in a message is made a huge length once, in both forms; some of the places are lengths."""
        for api_key in api_keys():
            chance = random.Random(api_key)
            for version, message_class in list(message_classes(api_key, direction))[-2:]:
                data = kio_bytes(chance_message(message_class, chance))[:300] + bytes(20)
                message_reader(api_key, version, direction)
                for position in range(0, len(data), 1 + len(data) // 60):
                    for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f"):
                        mutant = data[:position] + claim + data[position + len(claim) :]
                        # Another test's thread may allocate meanwhile; a claim that takes memory takes it every time.
                        peaks = (peak_of_decoding(api_key, version, direction, mutant) for _ in range(5))
                        assert any(peak < SMALL_FRAME_MEMORY_MAX for peak in peaks), (api_key, version, mutant.hex())


def peak_of_decoding(api_key: int, version: int, direction: Direction, data: bytes) -> int:
    """Return the bytes of memory that decoding ``data`` takes at its peak."""
    tracemalloc.start()
    try:
        decode_or_refuse(api_key, version, direction, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def decode_or_refuse(api_key: int, version: int, direction: Direction, data: bytes) -> None:
    """Any exception but MalformedRequest fails the test."""
    try:
        read(api_key, version, direction, data)
    except MalformedRequest:
        return
    except Exception as error:
        pytest.fail(f"{direction} {api_key} version {version} {data.hex()}: {error!r}")


class TestFuzz:
    def test_random_bytes(self) -> None:
        for which, _, chance in every_message(Direction.REQUEST):
            for _ in range(20):
                decode_or_refuse(*which, chance.randbytes(chance.randrange(200)))

    def test_frames_from_strangers(self) -> None:
        """Header and body as one, of every version: valid, with unknown tags, with bytes changed, cut, inserted."""
        for (api_key, version, _), message_class, chance in every_message(Direction.REQUEST):
            message = chance_message(message_class, chance)
            body = bytes_with_unknown_tags(message) if message_class.__flexible__ else kio_bytes(message)
            frame = request_header(api_key, version, 1, "client") + body
            decode_frame(memoryview(frame))
            check_mutations(decode_frame, frame, seed=chance.randrange(1 << 32), rounds=20)


def decode_frame(frame: memoryview) -> DecodedMessage:
    return decode_request(parse_request_header(frame), frame)


class TestRequests:
    # Written by hand from the protocol's definition.
    METADATA_1 = b"\0\x03\0\x01\0\0\0\x05\0\x01c" + b"\0\0\0\x02\0\x01a\0\x01b"
    METADATA_12 = b"\0\x03\0\x0c\0\0\0\x05\0\x01c\0" + b"\x02" + bytes(16) + b"\x02a\0" + b"\x01\0\0"

    @pytest.mark.parametrize("frame", [memoryview(METADATA_1), memoryview(bytearray(METADATA_1))])
    def test_before_flexible_versions(self, frame: memoryview) -> None:
        assert [topic.name for topic in decode_frame(frame).topics] == ["a", "b"]

    @pytest.mark.parametrize("trailing", [b"", b"more"])
    def test_in_flexible_versions(self, trailing: bytes) -> None:
        request = decode_frame(memoryview(self.METADATA_12 + trailing))
        assert [(topic.topic_id, topic.name) for topic in request.topics] == [(bytes(16), "a")]
        assert request.allow_auto_topic_creation is True

    def test_encoding(self) -> None:
        body = encode_request(ApiKey.METADATA, 12, {"topics": [{"name": "a"}]})
        assert request_header(ApiKey.METADATA, 12, 5, "c") + body == self.METADATA_12

    def test_a_version_that_has_no_definition(self) -> None:
        for api_key, version in [(4, 1), (3, 14), (3, -1), (0, 2)]:
            with pytest.raises(MalformedRequest, match=f"api key {api_key} has no version {version}"):
                decode_request(RequestHeader(api_key, version, 1, None, 0), memoryview(bytes(50)))

    def test_a_stranger_may_not_send_so_many_elements(self) -> None:
        body = encode_request(ApiKey.METADATA, 9, {"topics": [{}] * (ELEMENTS_MAX + 1)})
        with pytest.raises(MalformedRequest, match="too many array elements"):
            decode_request(RequestHeader(ApiKey.METADATA, 9, 1, None, 0), memoryview(body))

    def test_unknown_tagged_fields_in_header_and_body(self) -> None:
        header = b"\0\x03\0\x0c\0\0\0\x05\0\x01c" + b"\x01\x07\x02hi"
        body = b"\x02" + bytes(16) + b"\x02a" + b"\x01\x07\x02hi" + b"\x01\0" + b"\x02\x07\x02hi\x08\x00"
        assert decode_frame(memoryview(header + body)).topics[0].name == "a"


class TestResponses:
    def test_api_versions_to_a_version_that_we_lack(self) -> None:
        """KIP-511: a body of version 0, with error 35, that names ApiVersions alone."""
        fields = {
            "error_code": ErrorCode.UNSUPPORTED_VERSION,
            "api_keys": [{"api_key": ApiKey.API_VERSIONS, "min_version": 0, "max_version": 4}],
            "throttle_time_ms": 0,
        }
        assert encode_response(ApiKey.API_VERSIONS, 0, fields) == b"\0\x23" + b"\0\0\0\x01" + b"\0\x12\0\0\0\x04"

    def test_api_versions_3(self) -> None:
        fields = {"api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}], "throttle_time_ms": 1}
        body = encode_response(ApiKey.API_VERSIONS, 3, fields)
        assert body == b"\0\0" + b"\x02" + b"\0\x12\0\0\0\x04\0" + b"\0\0\0\x01" + b"\0"
        response = decode_response(ApiKey.API_VERSIONS, 3, memoryview(body))
        assert [vars(api) for api in response.api_keys] == [{"api_key": 18, "min_version": 0, "max_version": 4}]
        assert response.finalized_features_epoch == -1

    def test_at_a_position(self) -> None:
        body = encode_response(ApiKey.HEARTBEAT, 4, {"error_code": ErrorCode.UNKNOWN_MEMBER_ID})
        response = decode_response(ApiKey.HEARTBEAT, 4, memoryview(b"header" + body), 6)
        assert ErrorCode(response.error_code) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_client_may_read_large_ones(self) -> None:
        count = ELEMENTS_MAX + 1
        body = encode_response(ApiKey.METADATA, 12, {"topics": [{"partitions": [{"replica_nodes": range(count)}]}]})
        response = decode_response(ApiKey.METADATA, 12, memoryview(body))
        assert response.topics[0].partitions[0].replica_nodes == tuple(range(count))


class TestLimits:
    def test_a_hundred_bytes_that_claim_billions(self) -> None:
        """kio's own reader would ask for 34 GB here, and the process would be aborted."""
        started = time.perf_counter()
        for claim in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"):
            with pytest.raises(MalformedRequest, match="an array of"):
                read(ApiKey.METADATA, 12, Direction.REQUEST, claim + bytes(95))
        with pytest.raises(MalformedRequest, match="an array of 2147483647"):
            read(ApiKey.METADATA, 1, Direction.REQUEST, b"\x7f\xff\xff\xff" + bytes(96))
        assert time.perf_counter() - started < BUDGET_SECONDS

    def test_more_elements_than_any_client_sends(self) -> None:
        body = write_compact_length(ELEMENTS_MAX + 1) + b"\1\0" * (ELEMENTS_MAX + 1) + b"\1\0\0\0"
        with pytest.raises(MalformedRequest, match="too many array elements"):
            read(ApiKey.METADATA, 9, Direction.REQUEST, body)

    @pytest.mark.parametrize(("elements_max", "is_enough"), [(4, True), (3, False), (1, False)])
    def test_elements_inside_tagged_fields_count(self, elements_max: int, is_enough: bool) -> None:
        feature = {"name": "f"}
        values = {"supported_features": [feature] * 2, "finalized_features": [feature] * 2}
        data = write(ApiKey.API_VERSIONS, 3, Direction.RESPONSE, values)
        # The two tagged fields count themselves, too.
        reader = Reader(memoryview(data), elements_max=elements_max + 2)
        read_response = message_reader(ApiKey.API_VERSIONS, 3, Direction.RESPONSE)
        if is_enough:
            assert len(read_response(reader).finalized_features) == 2
        else:
            with pytest.raises(MalformedRequest, match="too many array elements"):
                read_response(reader)

    def test_null_where_it_is_not_allowed(self) -> None:
        with pytest.raises(MalformedRequest, match="null is not allowed"):
            read(ApiKey.CREATE_TOPICS, 7, Direction.REQUEST, b"\0" + bytes(6))

    def test_a_tagged_field_longer_than_its_value(self) -> None:
        body = bytes(4) + bytes(2) + bytes(4) + b"\1" + b"\1\0\2" + b"\1\0"
        with pytest.raises(MalformedRequest, match="1 bytes are left over"):
            read(ApiKey.FETCH, 16, Direction.RESPONSE, body)


class TestDecodedMessage:
    def test_a_field_that_the_version_lacks_has_its_default(self) -> None:
        request, _ = read(ApiKey.METADATA, 0, Direction.REQUEST, b"\0\0\0\1\0\1t")
        assert vars(request).keys() == {"topics"}
        assert request.allow_auto_topic_creation is True
        assert request.include_cluster_authorized_operations is False
        assert request.topics[0].topic_id == bytes(16)

    def test_even_if_the_newest_version_lacks_it_too(self) -> None:
        request, _ = read(ApiKey.FIND_COORDINATOR, 4, Direction.REQUEST, b"\0\1\0")
        assert request.key == ""

    def test_structs_that_the_version_lacks_or_that_were_left_out(self) -> None:
        request, _ = read(ApiKey.FETCH, 4, Direction.REQUEST, bytes(21))
        assert request.replica_state.replica_epoch == -1
        request, _ = read(ApiKey.FETCH, 17, Direction.REQUEST, bytes(21) + b"\1\1\1\0")
        assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (-1, -1)

    @pytest.mark.parametrize("name", ["allow_auto_topic_creatoin", "__wrapped__"])
    def test_a_field_that_no_version_has(self, name: str) -> None:
        request, _ = read(ApiKey.METADATA, 0, Direction.REQUEST, bytes(4))
        with pytest.raises(AttributeError, match=name):
            getattr(request, name)

    def test_times_that_no_timedelta_holds(self) -> None:
        body = b"\0\1g" + bytes(4) + b"\0\1m" + b"\x7f" + b"\xff" * 7 + bytes(4)
        request, _ = read(ApiKey.OFFSET_COMMIT, 2, Direction.REQUEST, body)
        assert request.retention_time_ms == 2**63 - 1

    def test_it_outlives_the_frame(self) -> None:
        frame = bytearray(b"\0\0\0\5token")
        request = message_reader(ApiKey.SASL_AUTHENTICATE, 0, Direction.REQUEST)(Reader(memoryview(frame)))
        frame[:] = bytes(len(frame))
        assert request.auth_bytes == b"token"

    def test_it_compares_and_shows_its_fields(self) -> None:
        body = encode_response(ApiKey.HEARTBEAT, 4, {"error_code": 7})
        response, again = (decode_response(ApiKey.HEARTBEAT, 4, memoryview(body)) for _ in range(2))
        assert response == again
        assert response != decode_response(ApiKey.HEARTBEAT, 4, memoryview(encode_response(ApiKey.HEARTBEAT, 4, {})))
        assert repr(response) == "HeartbeatResponse(throttle_time_ms=0, error_code=7)"


class TestWritten:
    def test_kafkas_default(self) -> None:
        data = write(ApiKey.METADATA, 7, Direction.RESPONSE, {})
        assert data == bytes(4) + bytes(4) + b"\xff\xff" + b"\xff\xff\xff\xff" + bytes(4)

    def test_null_where_it_may_be_null(self) -> None:
        assert write(ApiKey.FIND_COORDINATOR, 1, Direction.RESPONSE, {}).endswith(b"\xff\xff" + bytes(4) + bytes(2) + bytes(4))

    def test_a_null_struct(self) -> None:
        data = write(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, Direction.RESPONSE, {})
        assert data == bytes(4) + b"\1" + b"\xff" + b"\0"
        data = write(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, Direction.RESPONSE, {"next_cursor": {"topic_name": "t"}})
        assert data == bytes(4) + b"\1" + b"\1" + b"\2t" + bytes(4) + b"\0" + b"\0"

    def test_a_tagged_field_is_written_if_it_differs(self) -> None:
        def features(values: Fields) -> bytes:
            return write(ApiKey.API_VERSIONS, 3, Direction.RESPONSE, values)

        assert features({}) == features({"finalized_features_epoch": -1, "finalized_features": []})
        assert features({}) == bytes(2) + b"\1" + bytes(4) + b"\0"
        assert features({"finalized_features_epoch": 5}) == bytes(2) + b"\1" + bytes(4) + b"\1\1\x08" + bytes(7) + b"\5"

    def test_fields_that_the_version_lacks_are_dropped_at_every_depth(self) -> None:
        topic = {"name": "t", "topic_id": b"i" * 16, "error_code": ErrorCode.TOPIC_ALREADY_EXISTS, "error_message": "there"}
        created = {"throttle_time_ms": 7, "topics": [topic]}
        old = write(ApiKey.CREATE_TOPICS, 2, Direction.RESPONSE, created)
        assert old == b"\0\0\0\7" + b"\0\0\0\1" + b"\0\1t" + b"\0\x24" + b"\0\5there"
        assert b"i" * 16 in write(ApiKey.CREATE_TOPICS, 7, Direction.RESPONSE, created)

    def test_dropped_even_if_the_newest_version_lacks_them_too(self) -> None:
        values = {"error_code": ErrorCode.NONE, "host": "h", "coordinators": [{"key": "k", "host": "h"}]}
        assert b"\2k" in write(ApiKey.FIND_COORDINATOR, 4, Direction.RESPONSE, values)
        assert b"\0\1h" in write(ApiKey.FIND_COORDINATOR, 0, Direction.RESPONSE, values)

    def test_mistakes_of_the_program(self) -> None:
        for unknown in ({"throttle_ms": 1}, {"topics": [{"nmae": "t"}]}):
            with pytest.raises(TypeError, match=r"no version of Creat\w+ has a field (throttle_ms|nmae)"):
                write(ApiKey.CREATE_TOPICS, 7, Direction.RESPONSE, unknown)
        for topic_id in (b"", b"i" * 15, b"i" * 17):
            with pytest.raises(ValueError, match="an id has 16 bytes"):
                write(ApiKey.METADATA, 12, Direction.RESPONSE, {"topics": [{"topic_id": topic_id}]})
        for null in ({"brokers": [{"host": None}]}, {"brokers": None}):
            with pytest.raises((TypeError, AttributeError)):
                write(ApiKey.METADATA, 12, Direction.RESPONSE, null)
        with pytest.raises(struct.error):
            write(ApiKey.METADATA, 12, Direction.RESPONSE, {"throttle_time_ms": 2**31})


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``code``."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split())


class TestImports:
    IMPORT_ALL = "import pkgutil, importlib, tidelog.wire as wire\n" + (
        "for module in pkgutil.iter_modules(wire.__path__): importlib.import_module('tidelog.wire.' + module.name)\n"
    )
    ENCODE = "from tidelog.wire.messages import encode_response\nencode_response(3, 12, {'cluster_id': 'c'})"

    def test_importing_the_package_imports_nothing_of_kio(self) -> None:
        modules = modules_after(self.IMPORT_ALL)
        assert "tidelog.wire.messages" in modules
        assert not {name for name in modules if name.split(".")[0] == "kio"}

    def test_a_message_imports_its_own_definition_only_and_not_hypothesis(self) -> None:
        modules = modules_after(self.ENCODE)
        definitions = {name for name in modules if name.startswith("kio.schema.") and name.endswith((".request", ".response"))}
        assert definitions == {"kio.schema.metadata.v12.request", "kio.schema.metadata.v12.response"}
        assert not {name for name in modules if name.split(".")[0] == "hypothesis"}

    def test_hypothesis_can_be_imported_afterwards(self) -> None:
        assert "hypothesis.strategies" in modules_after(f"{self.ENCODE}\nimport hypothesis")


class TestDefinitions:
    def fields(self, api_key: ApiKey, version: int, direction: Direction) -> dict[str, Field]:
        return {field.name: field for field in message_struct(api_key, version, direction)[0].fields}

    def test_versions(self) -> None:
        assert versions(ApiKey.METADATA, Direction.REQUEST) == list(range(14))
        assert versions(ApiKey.CREATE_TOPICS, Direction.RESPONSE) == list(range(2, 8))
        assert versions(4, Direction.REQUEST) == []
        for api_key, version in [(4, 0), (ApiKey.METADATA, 14), (ApiKey.METADATA, -1)]:
            for get in (message_struct, message_reader, message_writer):
                with pytest.raises(KeyError):
                    get(api_key, version, Direction.REQUEST)

    def test_every_time_is_in_milliseconds_and_says_so(self) -> None:
        assert self.fields(ApiKey.PRODUCE, 9, Direction.RESPONSE)["throttle_time_ms"].type.name == "int32"
        retention = self.fields(ApiKey.OFFSET_COMMIT, 2, Direction.REQUEST)["retention_time_ms"]
        assert (retention.type.name, retention.default) == ("int64", -1)
        path = ("responses", "partition_responses")
        append_time = field_in_any_version(ApiKey.PRODUCE, Direction.RESPONSE, path, "log_append_time_ms")
        assert append_time is not None
        assert (append_time.is_nullable, append_time.default) == (False, -1)

    def test_an_id_is_never_null(self) -> None:
        topics = self.fields(ApiKey.METADATA, 12, Direction.REQUEST)["topics"]
        assert topics.is_array
        assert topics.is_nullable
        assert isinstance(topics.type, Struct)
        topic_id = topics.type.fields[0]
        assert (topic_id.name, topic_id.is_nullable, topic_id.default) == ("topic_id", False, bytes(16))

    def test_error_codes_are_integers(self) -> None:
        error_code = self.fields(ApiKey.API_VERSIONS, 0, Direction.RESPONSE)["error_code"]
        assert (error_code.type.name, error_code.default) == ("int16", 0)

    def test_the_newest_definition_of_a_field_counts(self) -> None:
        newest = self.fields(ApiKey.METADATA, 13, Direction.REQUEST)["topics"]
        assert field_in_any_version(ApiKey.METADATA, Direction.REQUEST, (), "topics") is newest
        # Of a struct that the newest version lacks.
        assert field_in_any_version(ApiKey.OFFSET_FETCH, Direction.REQUEST, ("topics",), "partition_indexes") is not None
        for path, name in [((), "topic"), (("topics",), "nmae"), (("nowhere",), "name")]:
            assert field_in_any_version(ApiKey.METADATA, Direction.REQUEST, path, name) is None
