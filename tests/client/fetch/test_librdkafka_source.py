"""What librdkafka's messages become; reading through it is tested beside our own way, in ``test_client``."""

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME

from tests.client.fetch.rows import Row, rows_of
from tidelog.client.fetch.librdkafka_source import _record_batch
from tidelog.client.fetch.types import MILLISECONDS_MAX, FetchRange


class FakeMessage:
    def __init__(self, milliseconds: int, kind: int = TIMESTAMP_CREATE_TIME) -> None:
        self._timestamp = kind, milliseconds

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b"v"

    def offset(self) -> int:
        return 5

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("a", None)]


@pytest.mark.parametrize(
    ("milliseconds", "kept"),
    [(7, 7), (-1, -1), (2**63 - 1, MILLISECONDS_MAX), (-(2**63), -MILLISECONDS_MAX)],
)
def test_times_that_microseconds_cannot_hold_become_the_nearest(milliseconds: int, kept: int) -> None:
    wanted = FetchRange("t", 0, 0, 9, None, 10, True)
    messages = [FakeMessage(milliseconds), FakeMessage(milliseconds, TIMESTAMP_LOG_APPEND_TIME)]
    expected = [Row(5, None, b"v", kept * 1000, kind, (("a", None),)) for kind in (0, 1)]
    assert rows_of([_record_batch(messages, wanted)], "t", 0) == expected
