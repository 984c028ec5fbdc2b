"""``tidelog topics hotkeys``: which keys have most of a topic's messages, and how uneven its partitions are, from a sample.

How many messages each partition has is known from its offsets. The sample is the newest messages of every partition, as many of
each as is its part of the whole, so that a key's share of the sample is its share of the topic. It is counted in bounded memory.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import typer
from confluent_kafka import KafkaError, TopicPartition

from tidelog.cli.consume import read_timestamp
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    REQUEST_SECONDS_MAX,
    BootstrapOption,
    Cluster,
    JsonOption,
    PropertiesOption,
)
from tidelog.cli.message_text import json_field, shown
from tidelog.cli.output import count_of, make_console, say, show_json, show_table
from tidelog.client.hot_keys import HotKey, HotKeys, PartitionShare

EPILOG = "Example: tidelog topics hotkeys orders --since 2026-01-31T12:00:00Z --top 5"

SAMPLE_MESSAGES = 100_000
SAMPLE_MESSAGES_MAX = 10_000_000
BATCH_MESSAGES = 2_000
POLL_SECONDS = 0.5
# Nothing for this long means that the broker went away.
SILENCE_SECONDS_MAX = 10.0
KEY_CHARACTERS_MAX = 60


class Span(NamedTuple):
    """The messages of a partition from ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def messages(self) -> int:
        return max(0, self.end - self.start)


def hotkeys_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    sample: Annotated[
        int, typer.Option("--sample", "-s", min=1, max=SAMPLE_MESSAGES_MAX, help="How many messages to look at, the newest.")
    ] = SAMPLE_MESSAGES,
    top: Annotated[int, typer.Option("--top", "-n", min=1, max=100, help="How many keys to show.")] = 10,
    since: Annotated[
        str | None, typer.Option("--since", help="Only messages from this time on: ISO 8601 or milliseconds since 1970.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the keys with most messages, and how evenly the partitions are used, from a sample."""
    since_ms = None if since is None else read_timestamp(since, "--since")
    cluster = Cluster(bootstrap, properties)
    consumer = cluster.consumer({"enable.partition.eof": True, "auto.offset.reset": "earliest"})
    try:
        partitions = sorted(cluster.topic(consumer, topic).partitions)
        spans = _spans(cluster, consumer, topic, partitions, since_ms)
        found = _read(cluster, consumer, topic, _sampled(spans, sample), HotKeys(partitions))
    finally:
        consumer.close()
    if as_json:
        show_json(_document(topic, found, found.keys(top)))
    else:
        _show(topic, found, found.keys(top))


def _spans(cluster: Cluster, consumer: Any, topic: str, partitions: list[int], since_ms: int | None) -> dict[int, Span]:
    spans = {}
    with cluster.errors():
        for partition in partitions:
            start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST_SECONDS_MAX)
            spans[partition] = Span(start, end)
        if since_ms is not None:
            asked = [TopicPartition(topic, partition, since_ms) for partition in partitions]
            for place in consumer.offsets_for_times(asked, timeout=REQUEST_SECONDS_MAX):
                end = spans[place.partition].end
                spans[place.partition] = Span(place.offset if place.offset >= 0 else end, end)
    return spans


def _sampled(spans: dict[int, Span], sample: int) -> dict[int, Span]:
    """The newest messages of each partition, in proportion: at least one of each that has any."""
    total = sum(span.messages for span in spans.values())
    if total <= sample:
        return {partition: span for partition, span in spans.items() if span.messages}
    return {
        partition: Span(span.end - max(1, span.messages * sample // total), span.end)
        for partition, span in spans.items()
        if span.messages
    }


def _read(cluster: Cluster, consumer: Any, topic: str, spans: dict[int, Span], found: HotKeys) -> HotKeys:
    unfinished = set(spans)
    silence_seconds = 0.0
    with cluster.errors():
        consumer.assign([TopicPartition(topic, partition, span.start) for partition, span in spans.items()])
    while unfinished:
        with cluster.errors():
            messages = consumer.consume(BATCH_MESSAGES, POLL_SECONDS)
        silence_seconds = 0.0 if messages else silence_seconds + POLL_SECONDS
        if silence_seconds > SILENCE_SECONDS_MAX:
            raise CommandFailed(f"no broker answers at {cluster.bootstrap}: nothing came for {SILENCE_SECONDS_MAX:.0f} s")
        for message in messages:
            partition = message.partition()
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise CommandFailed(cluster.reason(error))
                unfinished.discard(partition)
            elif partition in unfinished:
                end = spans[partition].end
                if message.offset() < end:
                    key = message.key()
                    found.add(partition, key, len(key or b"") + len(message.value() or b""))
                if message.offset() + 1 >= end:
                    unfinished.discard(partition)
    return found


def _document(topic: str, found: HotKeys, keys: list[HotKey]) -> dict[str, object]:
    return {
        "topic": topic,
        "messages": found.messages,
        "without_key": found.without_key,
        "keys": [
            {**json_field("key", key.key), "messages": key.messages, "error": key.error, "share": round(key.share, 6)}
            for key in keys
        ],
        "partitions": [
            {
                "partition": share.partition,
                "messages": share.messages,
                "bytes": share.bytes,
                "share": round(share.share, 6),
                "skew": round(share.skew, 3),
            }
            for share in found.partitions()
        ],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _show(topic: str, found: HotKeys, keys: list[HotKey]) -> None:
    console = make_console()
    if not found.messages:
        say(console, f"There are no messages in {topic}, or none since then.")
        return
    partitions = found.partitions()
    say(console, f"{topic}: {count_of(found.messages, 'message')} sampled, {found.without_key:,} of them without a key")
    if keys:
        rows = [(_key_text(key.key), key.messages, key.error, f"{key.share:.1%}") for key in keys]
        show_table(console, ("Key", "Messages", "At most too many", "Share"), rows)
    rows_of_partitions = [
        (share.partition, share.messages, share.bytes, f"{share.share:.1%}", f"{share.skew:.2f}x") for share in partitions
    ]
    show_table(console, ("Partition", "Messages", "Bytes", "Share", "Of the mean"), rows_of_partitions)
    for line in _advice(keys, partitions):
        say(console, line)


def _advice(keys: list[HotKey], partitions: list[PartitionShare]) -> list[str]:
    """A key is hot when it alone has more than a partition's even part: no number of partitions can then even it out."""
    fair = 1 / len(partitions)
    hot = [key for key in keys if key.share > fair] if len(partitions) > 1 else []
    return [
        f"{_key_text(key.key)} has {key.share:.0%} of the messages, a partition's even part is {fair:.0%}: "
        f"spread it over {min(len(partitions), max(2, round(key.share / fair + 0.5)))} partitions or more (tidelog.client.spread)"
        for key in hot
    ]


def _key_text(key: bytes) -> str:
    text = shown(key)
    return text if len(text) <= KEY_CHARACTERS_MAX else text[: KEY_CHARACTERS_MAX - 1] + "…"
