import random
import struct

import pytest

from tests.wire.kio_messages import api_keys, chance_message, kio_bytes, message_classes
from tidelog.wire.errors import ErrorCode
from tidelog.wire.message_reader import message_reader
from tidelog.wire.message_writer import Fields, message_writer
from tidelog.wire.primitives import Reader
from tidelog.wire.protocol import ApiKey
from tidelog.wire.schema import Direction, plain_fields

MESSAGES_PER_VERSION = 6


def write(api_key: int, version: int, direction: Direction, values: Fields) -> bytes:
    out = bytearray()
    message_writer(api_key, version, direction)(out, values)
    return bytes(out)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("api_key", api_keys())
class TestEveryMessage:
    def test_writes_what_kio_writes(self, api_key: int, direction: Direction) -> None:
        chance = random.Random(api_key)
        for version, message_class in message_classes(api_key, direction):
            for _ in range(MESSAGES_PER_VERSION):
                message = chance_message(message_class, chance)
                assert write(api_key, version, direction, plain_fields(message)) == kio_bytes(message)

    def test_defaults_can_be_read_back_and_written_again(self, api_key: int, direction: Direction) -> None:
        for version, _ in message_classes(api_key, direction):
            data = write(api_key, version, direction, {})
            reader = Reader(memoryview(data))
            message = message_reader(api_key, version, direction)(reader)
            reader.expect_end()
            assert write(api_key, version, direction, message) == data


class TestDefaults:
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

        assert features({}) == features({"finalized_features_epoch": -1}) == bytes(2) + b"\1" + bytes(4) + b"\0"
        assert features({"finalized_features_epoch": 5}) == bytes(2) + b"\1" + bytes(4) + b"\1\1\x08" + bytes(7) + b"\5"


CREATED: Fields = {
    "throttle_time_ms": 7,
    "topics": [{"name": "t", "topic_id": b"i" * 16, "error_code": ErrorCode.TOPIC_ALREADY_EXISTS, "error_message": "there"}],
}


class TestVersions:
    def test_fields_that_the_version_lacks_are_dropped_at_every_depth(self) -> None:
        old = write(ApiKey.CREATE_TOPICS, 2, Direction.RESPONSE, CREATED)
        assert old == b"\0\0\0\7" + b"\0\0\0\1" + b"\0\1t" + b"\0\x24" + b"\0\5there"
        new = write(ApiKey.CREATE_TOPICS, 7, Direction.RESPONSE, CREATED)
        assert b"i" * 16 in new

    def test_dropped_even_if_the_newest_version_lacks_them_too(self) -> None:
        values = {"error_code": ErrorCode.NONE, "host": "h", "coordinators": [{"key": "k", "host": "h"}]}
        assert b"\2k" in write(ApiKey.FIND_COORDINATOR, 4, Direction.RESPONSE, values)
        assert b"\0\1h" in write(ApiKey.FIND_COORDINATOR, 0, Direction.RESPONSE, values)

    @pytest.mark.parametrize("values", [{"throttle_ms": 1}, {"topics": [{"nmae": "t"}]}])
    def test_a_name_that_no_version_has(self, values: Fields) -> None:
        with pytest.raises(TypeError, match=r"no version of Creat\w+ has a field (throttle_ms|nmae)"):
            write(ApiKey.CREATE_TOPICS, 7, Direction.RESPONSE, values)

    @pytest.mark.parametrize(("api_key", "version"), [(ApiKey.METADATA, 99), (4, 0)])
    def test_a_version_or_key_that_does_not_exist(self, api_key: int, version: int) -> None:
        with pytest.raises(KeyError):
            message_writer(api_key, version, Direction.RESPONSE)


class TestMistakes:
    @pytest.mark.parametrize("topic_id", [b"", b"i" * 15, b"i" * 17])
    def test_an_id_of_another_size(self, topic_id: bytes) -> None:
        with pytest.raises(ValueError, match="an id of"):
            write(ApiKey.METADATA, 12, Direction.RESPONSE, {"topics": [{"topic_id": topic_id}]})

    def test_null_where_it_is_not_allowed(self) -> None:
        with pytest.raises((TypeError, AttributeError)):
            write(ApiKey.METADATA, 12, Direction.RESPONSE, {"brokers": [{"host": None}]})
        with pytest.raises((TypeError, AttributeError)):
            write(ApiKey.METADATA, 12, Direction.RESPONSE, {"brokers": None})

    def test_a_number_that_does_not_fit(self) -> None:
        with pytest.raises(struct.error):
            write(ApiKey.METADATA, 12, Direction.RESPONSE, {"throttle_time_ms": 2**31})
