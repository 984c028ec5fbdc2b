"""``tidelog consume``: messages of a topic, from any point on, on any Kafka.

Without a group partitions are assigned by hand and nothing is committed, so looking at a topic changes nothing; with ``--group``
it is a member like any other (``consume_group``). Without ``--tail`` it ends where the topic ended when it began; with it, it
goes on until it is interrupted.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from confluent_kafka import OFFSET_END, KafkaError, TopicPartition

from tidelog.cli.consume_group import consume_as_member
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, METADATA_SECONDS_MAX, BootstrapOption, Cluster, JsonOption, PropertiesOption
from tidelog.cli.message_text import make_formatter

app = typer.Typer()

# How many messages are taken from the client at once, and how long it is waited for them; Ctrl-C works in between.
BATCH_MESSAGES = 1000
POLL_SECONDS = 0.2
# Without any message or end for so long, the broker is gone.
SILENCE_SECONDS_MAX = 30.0

# What a timestamp can be in the protocol.
TIMESTAMP_MAX = 2**63 - 1

BEGINNING = ("beginning", "earliest")
END = ("end", "latest")


@dataclass(slots=True)
class Filters:
    key: re.Pattern[str] | None
    value: re.Pattern[str] | None

    def accept(self, message: Any) -> bool:
        return _matches(self.key, message.key()) and _matches(self.value, message.value())


def _matches(pattern: re.Pattern[str] | None, content: bytes | None) -> bool:
    return pattern is None or (content is not None and pattern.search(content.decode("utf-8", "backslashreplace")) is not None)


@app.command("consume", epilog="Example: tidelog consume orders --offset -10 --tail --json")
def consume_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where from.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; several are fine.")
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest message.")] = False,
    offset: Annotated[
        str | None,
        typer.Option("--offset", "-o", help="Start here in each partition: a number, beginning, end, or -N from the end."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", help="Start with the first message of this time: ISO 8601 or milliseconds since 1970."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="As a member of this group: it goes on where it was.")
    ] = None,
    tail: Annotated[bool, typer.Option("--tail", "-f", help="Go on with new messages; starts at the end unless told.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "--max-messages", "-n", min=1, help="Stop after so many messages.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="REGEX", help="Only messages whose key has this in it.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="REGEX", help="Only messages whose value has this in it.")
    ] = None,
    message_format: Annotated[
        str,
        typer.Option("--format", metavar="text|full|json|TEMPLATE", help="Or say how: '{partition}:{offset} {key}={value}'."),
    ] = "text",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a topic. Looking changes nothing; with --group, what was printed is committed."""
    if sum((from_beginning, offset is not None, timestamp is not None)) > 1:
        raise CommandFailed("give only one of --from-beginning, --offset and --timestamp")
    filters = Filters(_pattern(key, "--key"), _pattern(value, "--value"))
    write = make_formatter("json" if as_json else message_format)
    start = "beginning" if from_beginning or (offset is None and not tail) else (offset or "end")
    cluster = Cluster(bootstrap, properties)
    if group is not None:
        for option, given in (("--partition", partition), ("--offset", offset), ("--timestamp", timestamp)):
            if given is not None:
                raise CommandFailed(f"{option} does not go with --group: its offsets say where it reads (tidelog groups reset)")
        is_latest = tail and not from_beginning
        consume_as_member(cluster, topic, group, filters.accept, write, count, is_tailing=tail, is_latest=is_latest)
        return
    consumer = cluster.consumer({"enable.partition.eof": True, "auto.offset.reset": "earliest"})
    try:
        partitions = _partitions(cluster, consumer, topic, partition)
        with cluster.errors():
            ends = {
                index: consumer.get_watermark_offsets(TopicPartition(topic, index), METADATA_SECONDS_MAX) for index in partitions
            }
            starts = _at_time(consumer, topic, ends, timestamp) if timestamp is not None else _at_offset(topic, ends, start)
            consumer.assign(starts)
        unfinished = {place.partition for place in starts if tail or place.offset < ends[place.partition][1]}
        _print_messages(cluster, consumer, unfinished, None if tail else ends, filters, write, count)
    except BrokenPipeError:
        # ``| head`` has seen enough. Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        consumer.close()


def _print_messages(
    cluster: Cluster,
    consumer: Any,
    unfinished: set[int],
    ends: dict[int, tuple[int, int]] | None,
    filters: Filters,
    write: Callable[[Any], str],
    count: int | None,
) -> None:
    """Until every partition has reached its end, or so many were printed; without ``ends``, until interrupted."""
    silence_seconds = 0.0
    left = count
    while unfinished and left != 0:
        with cluster.errors():
            messages = consumer.consume(BATCH_MESSAGES, POLL_SECONDS)
        silence_seconds = 0.0 if messages else silence_seconds + POLL_SECONDS
        if ends is not None and silence_seconds > SILENCE_SECONDS_MAX:
            raise CommandFailed(f"no broker answers at {cluster.bootstrap}: nothing came for {SILENCE_SECONDS_MAX:.0f} s")
        for message in messages:
            index = message.partition()
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise CommandFailed(cluster.reason(error))
                if ends is not None:
                    unfinished.discard(index)
                continue
            is_within = index in unfinished and (ends is None or message.offset() < ends[index][1])
            if is_within and left != 0 and filters.accept(message):
                sys.stdout.write(write(message) + "\n")
                left = None if left is None else left - 1
            if ends is not None and message.offset() + 1 >= ends[index][1]:
                unfinished.discard(index)
        sys.stdout.flush()


def _partitions(cluster: Cluster, consumer: Any, topic: str, wanted: Sequence[int] | None) -> list[int]:
    existing = sorted(cluster.topic(consumer, topic).partitions)
    for index in wanted or ():
        if index not in existing:
            raise CommandFailed(f"{topic} has no partition {index}, only 0 to {len(existing) - 1}")
    return sorted(set(wanted)) if wanted else existing


def _at_offset(topic: str, ends: dict[int, tuple[int, int]], text: str) -> list[Any]:
    if text in BEGINNING:
        return [TopicPartition(topic, index, low) for index, (low, _) in ends.items()]
    if text in END:
        return [TopicPartition(topic, index, high) for index, (_, high) in ends.items()]
    try:
        number = int(text)
    except ValueError:
        raise CommandFailed(f"--offset {text}: expected a number, beginning, end, or -N") from None
    if number < 0:
        return [TopicPartition(topic, index, max(low, high + number)) for index, (low, high) in ends.items()]
    outside = [index for index, (low, high) in ends.items() if not low <= number <= high]
    if len(outside) == len(ends):
        spans = ", ".join(f"partition {index} has {low} to {high}" for index, (low, high) in ends.items())
        raise CommandFailed(f"--offset {number} is outside: {spans}")
    return [TopicPartition(topic, index, min(max(number, low), high)) for index, (low, high) in ends.items()]


def _at_time(consumer: Any, topic: str, ends: dict[int, tuple[int, int]], text: str) -> list[Any]:
    asked = [TopicPartition(topic, index, read_timestamp(text)) for index in ends]
    found = consumer.offsets_for_times(asked, METADATA_SECONDS_MAX)
    for place in found:
        if place.offset == OFFSET_END or place.offset < 0:
            place.offset = ends[place.partition][1]
    return list(found)


def read_timestamp(text: str, option: str = "--timestamp") -> int:
    """Milliseconds since 1970. A time without an offset is local time."""
    if text.isascii() and text.isdigit() and int(text) <= TIMESTAMP_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(f"{option} {text}: expected milliseconds or a time such as 2026-01-31T12:00:00Z") from None
    return int(moment.astimezone(UTC).timestamp() * 1000)


def _pattern(text: str | None, option: str) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise CommandFailed(f"{option} {text}: {error}") from None
