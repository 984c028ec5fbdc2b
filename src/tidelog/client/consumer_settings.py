"""What a consumer is asked to be, checked, and librdkafka's settings for it.

librdkafka commits nothing by itself here and stores no offsets by itself: when an offset is committed is what the guarantees are
about, and is decided in ``consumer.py`` alone. ``auto.offset.reset`` is always ``earliest``: it also says what happens to a
group that fell behind retention, and that group wants what is left, not the end. Where a fresh group starts is resolved in
``offset_queries.py``.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from tidelog.client.errors import InvalidArgument
from tidelog.client.topic_partition import milliseconds_of

Guarantee = Literal["at-least-once", "at-most-once", "exactly-once"]
GUARANTEES = ("at-least-once", "at-most-once", "exactly-once")
PROTOCOLS = ("classic", "consumer")
ISOLATIONS = ("read_committed", "read_uncommitted")
COOPERATIVE = "cooperative-sticky"

PREFETCH_BYTES = 32 * 1024 * 1024
# Messages cost librdkafka some 250 bytes each beside their own: small ones are bounded by their number.
PREFETCH_RECORDS = 50_000
# How long the fetch of a partition whose queue is full waits before it looks again. The default, 1 s, is a stall for a fast
# reader.
_FULL_QUEUE_BACKOFF_MS = 20
# One answer of a broker, and one partition's part in it: what may arrive beyond a full queue.
_FETCH_BYTES = 8 * 1024 * 1024
_PARTITION_FETCH_BYTES = 1024 * 1024
_PARTITION_FETCH_BYTES_MIN = 16 * 1024
# librdkafka refuses to fetch less at once than one message may have.
_MESSAGE_BYTES = 1_000_000
_QUEUE_KILOBYTES_MAX = 2_097_151

# librdkafka wants a group's name even of those who have none.
NO_GROUP = "tidelog-no-group"

REFUSED: Mapping[str, str] = {
    "group.id": "give group=",
    "group.instance.id": "give instance_id=",
    "group.protocol": "give protocol=",
    "auto.offset.reset": "give start=; a group that fell behind retention goes on with what is left",
    "isolation.level": "give isolation=",
    "enable.auto.commit": "when offsets are committed is what guarantee= promises; see auto_commit=",
    "enable.auto.offset.store": "when offsets are committed is what guarantee= promises",
    "enable.partition.eof": "ask lag() whether the end is reached",
    "on_commit": "commit() says whether it succeeded",
    "error_cb": "what matters is raised by poll()",
    "queued.max.messages.kbytes": "give max_prefetch_bytes=",
    "queued.min.messages": "give max_prefetch_records=",
}


class StartPosition(NamedTuple):
    """Where a group starts in a partition that it has no committed offset for."""

    is_latest: bool = False
    timestamp_ms: int | None = None

    @property
    def is_earliest(self) -> bool:
        return not self.is_latest and self.timestamp_ms is None


def start_of(start: str | int | datetime) -> StartPosition:
    if start == "earliest":
        return StartPosition()
    if start == "latest":
        return StartPosition(is_latest=True)
    if isinstance(start, str):
        raise InvalidArgument(f'start is "earliest", "latest" or a timestamp (milliseconds or a datetime): not {start!r}')
    return StartPosition(timestamp_ms=milliseconds_of(start))


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{name} is one of {', '.join(choices)}: not {value!r}")


def check_subscription(topics: Sequence[str] | None, pattern: str | None, group: str | None) -> list[str]:
    """The topics to subscribe to; a pattern is one that starts with ^, which is how librdkafka knows it."""
    if isinstance(topics, str):
        raise InvalidArgument(f'topics is a list of names: ["{topics}"]')
    if topics is not None and pattern is not None:
        raise InvalidArgument("give topics= or pattern=, not both")
    if pattern is not None:
        if group is None:
            raise InvalidArgument("pattern= needs a group=: only a group follows topics that come and go")
        return [pattern if pattern.startswith("^") else f"^{pattern}"]
    names = list(topics or ())
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"topics is a list of names: not {name!r}")
        if name.startswith("^"):
            raise InvalidArgument(f"{name}: give a regular expression as pattern=")
    return names


def consumer_defaults(
    *,
    group: str | None,
    protocol: str,
    assignor: str | None,
    isolation: str,
    instance_id: str | None,
    max_prefetch_bytes: int,
    max_prefetch_records: int,
) -> dict[str, Any]:
    """For ``librdkafka_configuration``; what the caller gives raw goes over it."""
    kilobytes = max_prefetch_bytes // 1024
    if not 1 <= kilobytes <= _QUEUE_KILOBYTES_MAX:
        raise InvalidArgument(f"max_prefetch_bytes is from 1024 to {_QUEUE_KILOBYTES_MAX * 1024}: not {max_prefetch_bytes}")
    if max_prefetch_records < 1:
        raise InvalidArgument(f"max_prefetch_records is at least 1: not {max_prefetch_records}")
    settings: dict[str, Any] = {
        "group.id": group if group is not None else NO_GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "isolation.level": isolation,
        "queued.max.messages.kbytes": kilobytes,
        "queued.min.messages": max_prefetch_records,
        "fetch.queue.backoff.ms": _FULL_QUEUE_BACKOFF_MS,
        "fetch.max.bytes": max(_MESSAGE_BYTES, min(_FETCH_BYTES, max_prefetch_bytes)),
        # A quarter: what comes beyond a full queue should be small beside it.
        "max.partition.fetch.bytes": min(_PARTITION_FETCH_BYTES, max(max_prefetch_bytes // 4, _PARTITION_FETCH_BYTES_MIN)),
    }
    if instance_id is not None:
        settings["group.instance.id"] = instance_id
    if protocol == "consumer":
        settings["group.protocol"] = "consumer"
        if assignor is not None:
            settings["group.remote.assignor"] = assignor
    else:
        settings["partition.assignment.strategy"] = assignor or COOPERATIVE
    return settings
