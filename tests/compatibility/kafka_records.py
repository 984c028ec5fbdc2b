"""Records as a Kafka client hands them in and gets them back; apart from the client, so that fixtures can be read without it."""

from typing import NamedTuple


class SentRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ReadRecord(NamedTuple):
    offset: int
    timestamp: int
    is_log_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
