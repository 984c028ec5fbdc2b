"""The arguments of a consumer, checked, and librdkafka's settings for it.

librdkafka neither commits nor stores offsets by itself here: the guarantees depend on when an offset is committed, which only
``consumer.py`` decides. ``auto.offset.reset`` is always ``earliest``: it also applies to a group that fell behind retention,
which wants what is left, not the end. ``offset_queries.py`` resolves where a fresh group starts.
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
# librdkafka needs some 250 bytes per message on top of its own size, so small ones are bounded by their number.
PREFETCH_RECORDS = 50_000
# How long the fetch of a partition whose queue is full waits before it checks again. The default, 1 s, would stall a fast reader.
_FULL_QUEUE_BACKOFF_MS = 20
# The size of one broker's response, and of one partition's part of it: this much may arrive beyond a full queue.
_FETCH_BYTES = 8 * 1024 * 1024
_PARTITION_FETCH_BYTES = 1024 * 1024
_PARTITION_FETCH_BYTES_MIN = 16 * 1024
# librdkafka refuses to fetch less at once than one message may have.
_MESSAGE_BYTES = 1_000_000
FETCH_WAIT_SECONDS = 0.5
# Longer than librdkafka waits for an answer.
_FETCH_WAIT_SECONDS_MAX = 50.0
_QUEUE_KILOBYTES_MAX = 2_097_151

# librdkafka requires the name of a group even where there is none.
NO_GROUP = "tidelog-no-group"

REFUSED: Mapping[str, str] = {
    "group.id": "pass group=",
    "group.instance.id": "pass instance_id=",
    "group.protocol": "pass protocol=",
    "auto.offset.reset": "pass start=; a group that fell behind retention continues with what is left",
    "isolation.level": "pass isolation=",
    "enable.auto.commit": "guarantee= decides when offsets are committed; see auto_commit=",
    "enable.auto.offset.store": "guarantee= decides when offsets are committed",
    "enable.partition.eof": "lag() tells whether the end is reached",
    "on_commit": "commit() tells whether it succeeded",
    "error_cb": "poll() raises the errors that matter",
    "queued.max.messages.kbytes": "pass max_prefetch_bytes=",
    "queued.min.messages": "pass max_prefetch_records=",
}


class StartPosition(NamedTuple):
    """Where a group starts in a partition for which it has no committed offset."""

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


def check_guarantee(guarantee: str, *, group: str | None, auto_commit: bool, isolation: str) -> None:
    """InvalidArgument if these cannot hold together."""
    check_choice("guarantee", guarantee, GUARANTEES)
    check_choice("isolation", isolation, ISOLATIONS)
    if group is None and (guarantee != "at-least-once" or auto_commit):
        raise InvalidArgument(f"{guarantee} with commits needs a group=, because offsets are committed for a group")
    if auto_commit and guarantee != "at-least-once":
        raise InvalidArgument(f"auto_commit is for at-least-once only: {guarantee} commits at its own time")
    if guarantee == "exactly-once" and isolation != "read_committed":
        raise InvalidArgument("exactly-once reads only committed messages: leave isolation= at its default")


def check_subscription(topics: Sequence[str] | None, pattern: str | None, group: str | None) -> list[str]:
    """Return the topics to subscribe to. librdkafka takes a name that starts with ^ for a pattern."""
    if isinstance(topics, str):
        raise InvalidArgument(f'topics is a list of names: ["{topics}"]')
    if topics is not None and pattern is not None:
        raise InvalidArgument("pass topics= or pattern=, not both")
    if pattern is not None:
        if group is None:
            raise InvalidArgument("pattern= needs a group=, because only a group follows topics that come and go")
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
    fetch_min_bytes: int = 1,
    fetch_wait: float = FETCH_WAIT_SECONDS,
) -> dict[str, Any]:
    """The defaults for ``librdkafka_configuration``; the caller's raw settings override them."""
    kilobytes = max_prefetch_bytes // 1024
    if not 1 <= kilobytes <= _QUEUE_KILOBYTES_MAX:
        raise InvalidArgument(f"max_prefetch_bytes is from 1024 to {_QUEUE_KILOBYTES_MAX * 1024}: not {max_prefetch_bytes}")
    if max_prefetch_records < 1:
        raise InvalidArgument(f"max_prefetch_records is at least 1: not {max_prefetch_records}")
    fetch_bytes = max(_MESSAGE_BYTES, min(_FETCH_BYTES, max_prefetch_bytes))
    if not 1 <= fetch_min_bytes <= fetch_bytes:
        raise InvalidArgument(f"fetch_min_bytes is from 1 to {fetch_bytes}: not {fetch_min_bytes}")
    if not 0 <= fetch_wait <= _FETCH_WAIT_SECONDS_MAX:
        raise InvalidArgument(f"fetch_wait is from 0 to {_FETCH_WAIT_SECONDS_MAX:.0f} seconds: not {fetch_wait}")
    settings: dict[str, Any] = {
        "fetch.min.bytes": fetch_min_bytes,
        "fetch.wait.max.ms": round(fetch_wait * 1000),
        "group.id": group if group is not None else NO_GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "isolation.level": isolation,
        "queued.max.messages.kbytes": kilobytes,
        "queued.min.messages": max_prefetch_records,
        "fetch.queue.backoff.ms": _FULL_QUEUE_BACKOFF_MS,
        "fetch.max.bytes": fetch_bytes,
        # A quarter, so that what arrives beyond a full queue is small compared to it.
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
