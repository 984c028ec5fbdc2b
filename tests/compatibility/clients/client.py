"""What the tests ask of a client, whichever it is. One adapter per client implements it with the client's own calls.

No groups, no transactions, no idempotence: partitions are assigned, offsets are given. Each call opens and closes what it needs,
so that each starts like a new client would.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from tests.compatibility.kafka_records import ReadRecord, SentRecord

CALL_SECONDS_MAX = 30.0
MEBIBYTE = 1024 * 1024
# Clients refuse large messages by themselves; tests want to hear what the broker says.
SEND_BYTES_MAX = 64 * MEBIBYTE
# A client chooses the time when a record has this one.
NOW = 0


class Codec(StrEnum):
    """In the order of their numbers in a batch's attributes."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Refused(Exception):
    """The broker answered with an error, ``code`` is its number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Watermarks(NamedTuple):
    log_start_offset: int
    end_offset: int


class Client(Protocol):
    name: str
    sets_timestamps: bool
    """Whether a sender can say when its record was created."""

    def __init__(self, bootstrap_servers: str) -> None: ...

    def can_send(self, record: SentRecord) -> bool:
        """False: the client itself refuses it, or has no way to be asked for it."""

    def send(
        self, topic: str, records: Sequence[SentRecord], *, partition: int = 0, codec: Codec = Codec.NONE, acks: str = "all"
    ) -> list[int] | None:
        """Send and wait until all are acknowledged. Their offsets; None if the client does not tell, or was not told."""

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0, isolation: str = "read_uncommitted"
    ) -> list[ReadRecord]:
        """``count`` records from ``offset`` on."""

    def read_since(self, topic: str, count: int, timestamp: int, *, partition: int = 0) -> list[ReadRecord]:
        """``count`` records from the first at or after a time on."""

    def watermarks(self, topic: str, partition: int = 0) -> Watermarks: ...

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        """None if no record is that young."""


def tell_too_few(name: str, found: int, count: int) -> RuntimeError:
    return RuntimeError(f"{name} read {found} of {count} records within {CALL_SECONDS_MAX:.0f} s")
