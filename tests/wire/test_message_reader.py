import random
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.kio_messages import api_keys, bytes_with_unknown_tags, chance_message, kio_bytes, message_classes
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.message_reader import DecodedMessage, message_reader
from tidelog.wire.message_writer import message_writer
from tidelog.wire.primitives import ELEMENTS_MAX, Reader, write_compact_length
from tidelog.wire.protocol import ApiKey
from tidelog.wire.schema import Direction, plain_fields

MESSAGES_PER_VERSION = 6
# What a frame of some hundred bytes may take at most while it is decoded.
SMALL_FRAME_MEMORY_MAX = 200_000
BUDGET_SECONDS = 0.5


def read(api_key: int, version: int, direction: Direction, data: bytes) -> tuple[DecodedMessage, int]:
    reader = Reader(memoryview(data))
    return message_reader(api_key, version, direction)(reader), reader.position


def plain(value: Any) -> Any:
    if isinstance(value, DecodedMessage):
        return {name: plain(field) for name, field in vars(value).items()}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("api_key", api_keys())
class TestEveryMessage:
    def test_reads_what_kio_writes(self, api_key: int, direction: Direction) -> None:
        chance = random.Random(api_key)
        for version, message_class in message_classes(api_key, direction):
            for _ in range(MESSAGES_PER_VERSION):
                message = chance_message(message_class, chance)
                data = kio_bytes(message)
                found, position = read(api_key, version, direction, data + b"trailing")
                assert plain(found) == plain_fields(message)
                assert position == len(data)

    def test_ignores_unknown_tagged_fields_at_every_depth(self, api_key: int, direction: Direction) -> None:
        chance = random.Random(api_key)
        for version, message_class in message_classes(api_key, direction):
            if not message_class.__flexible__:
                continue
            for _ in range(MESSAGES_PER_VERSION):
                message = chance_message(message_class, chance)
                data = bytes_with_unknown_tags(message)
                assert len(data) > len(kio_bytes(message))
                found, position = read(api_key, version, direction, data)
                assert plain(found) == plain_fields(message)
                assert position == len(data)

    def test_cut_anywhere_it_is_malformed(self, api_key: int, direction: Direction) -> None:
        chance = random.Random(api_key)
        for version, message_class in message_classes(api_key, direction):
            data = kio_bytes(chance_message(message_class, chance))
            for length in {chance.randrange(len(data)) for _ in range(10)} if data else ():
                with pytest.raises(MalformedRequest):
                    read(api_key, version, direction, data[:length])

    def test_large_claims_take_little_memory(self, api_key: int, direction: Direction) -> None:
        """Every place in a message is made a huge length once, in both forms; some of the places are lengths."""
        chance = random.Random(api_key)
        read_any = [
            (version, kio_bytes(chance_message(message_class, chance))[:300] + bytes(20))
            for version, message_class in list(message_classes(api_key, direction))[-2:]
        ]
        for version, _ in read_any:
            message_reader(api_key, version, direction)
        tracemalloc.start()
        try:
            for version, data in read_any:
                for position in range(0, len(data), 1 + len(data) // 60):
                    for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f"):
                        decode_or_refuse(api_key, version, direction, data[:position] + claim + data[position + len(claim) :])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < SMALL_FRAME_MEMORY_MAX


def decode_or_refuse(api_key: int, version: int, direction: Direction, data: bytes) -> None:
    """Any other exception fails the test."""
    try:
        read(api_key, version, direction, data)
    except MalformedRequest:
        return


class TestFuzz:
    @pytest.mark.parametrize("api_key", api_keys())
    @settings(deadline=None, max_examples=40)
    @given(st.data())
    def test_random_bytes(self, api_key: int, data: st.DataObject) -> None:
        body = data.draw(st.binary(max_size=200))
        for version, _ in message_classes(api_key, Direction.REQUEST):
            decode_or_refuse(api_key, version, Direction.REQUEST, body)

    @pytest.mark.parametrize("api_key", api_keys())
    @settings(deadline=None, max_examples=40)
    @given(st.data())
    def test_mutated_requests(self, api_key: int, data: st.DataObject) -> None:
        version, message_class = data.draw(st.sampled_from(list(message_classes(api_key, Direction.REQUEST))))
        valid = kio_bytes(chance_message(message_class, random.Random(data.draw(st.integers(0, 50)))))
        mutated = bytearray(valid)
        for position, byte in data.draw(
            st.lists(st.tuples(st.integers(0, max(0, len(valid) - 1)), st.integers(0, 255)), max_size=8)
        ):
            mutated[position : position + 1] = bytes([byte])
        cut = data.draw(st.integers(0, len(mutated)))
        decode_or_refuse(api_key, version, Direction.REQUEST, bytes(mutated))
        decode_or_refuse(api_key, version, Direction.REQUEST, bytes(mutated[:cut]))


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
        out = bytearray()
        values = {"supported_features": [feature] * 2, "finalized_features": [feature] * 2}
        message_writer(ApiKey.API_VERSIONS, 3, Direction.RESPONSE)(out, values)
        # The two tagged fields count themselves, too.
        reader = Reader(memoryview(out), elements_max=elements_max + 2)
        read_response = message_reader(ApiKey.API_VERSIONS, 3, Direction.RESPONSE)
        if is_enough:
            assert len(read_response(reader).finalized_features) == 2
        else:
            with pytest.raises(MalformedRequest, match="too many array elements"):
                read_response(reader)


class TestRefused:
    def test_null_where_it_is_not_allowed(self) -> None:
        with pytest.raises(MalformedRequest, match="null is not allowed"):
            read(ApiKey.CREATE_TOPICS, 7, Direction.REQUEST, b"\0" + bytes(6))

    def test_a_tagged_field_longer_than_its_value(self) -> None:
        body = bytes(4) + bytes(2) + bytes(4) + b"\1" + b"\1\0\2" + b"\1\0"
        with pytest.raises(MalformedRequest, match="1 bytes are left over"):
            read(ApiKey.FETCH, 16, Direction.RESPONSE, body)


class TestMessage:
    def test_a_field_that_the_version_lacks_has_its_default(self) -> None:
        request, _ = read(ApiKey.METADATA, 0, Direction.REQUEST, b"\0\0\0\1\0\1t")
        assert vars(request).keys() == {"topics"}
        assert request.allow_auto_topic_creation is True
        assert request.include_cluster_authorized_operations is False
        assert request.topics[0].topic_id == bytes(16)

    def test_even_if_the_newest_version_lacks_it_too(self) -> None:
        request, _ = read(ApiKey.FIND_COORDINATOR, 4, Direction.REQUEST, b"\0\1\0")
        assert request.key == ""

    def test_a_struct_that_the_version_lacks(self) -> None:
        request, _ = read(ApiKey.FETCH, 4, Direction.REQUEST, bytes(21))
        assert request.replica_state.replica_epoch == -1

    def test_a_struct_that_was_left_out(self) -> None:
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
