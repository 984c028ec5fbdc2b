"""Transactions as tables and JSON documents."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console

from tidelog.cli.groups_text import assignment_text, duration
from tidelog.cli.output import show_json, show_table
from tidelog.client.transactions.hanging import OpenTransaction, TransactionVerdict
from tidelog.client.transactions.types import ProducerDescription, TransactionDescription, TransactionListing

_NONE = "-"


def show_listings(console: Console, listings: Sequence[TransactionListing], as_json: bool) -> None:
    if as_json:
        for listing in listings:
            show_json(listing._asdict())
        return
    rows = [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in listings]
    show_table(console, ("Transactional id", "Coordinator", "Producer", "State"), rows)


def show_descriptions(console: Console, descriptions: Sequence[TransactionDescription], as_json: bool, now_ms: int) -> None:
    if as_json:
        for each in descriptions:
            document = {**each._asdict(), "partitions": _partition_documents(each.partitions)}
            document["start_time_ms"] = each.start_time_ms if each.start_time_ms >= 0 else None
            document["duration_ms"] = now_ms - each.start_time_ms if each.start_time_ms >= 0 else None
            show_json(document)
        return
    columns = ("Transactional id", "Coordinator", "Producer", "Epoch", "State", "Time-out", "Began", "Age", "Partitions")
    rows = [
        (
            each.transactional_id,
            each.coordinator,
            each.producer_id,
            each.producer_epoch,
            each.state,
            duration(each.timeout_ms / 1000),
            time_text(each.start_time_ms),
            age_text(each.start_time_ms, now_ms),
            assignment_text(each.partitions),
        )
        for each in descriptions
    ]
    show_table(console, columns, rows)


def show_producers(
    console: Console, producers: Sequence[tuple[tuple[str, int], ProducerDescription]], as_json: bool, now_ms: int
) -> None:
    if as_json:
        for (topic, partition), producer in producers:
            show_json(_producer_document(topic, partition, producer))
        return
    columns = ("Topic", "Partition", "Producer", "Epoch", "Coordinator epoch", "Last sequence", "Last write", "Age", "Open since")
    rows = [
        (
            topic,
            partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch if producer.coordinator_epoch >= 0 else _NONE,
            producer.last_sequence if producer.last_sequence >= 0 else _NONE,
            time_text(producer.last_timestamp_ms),
            age_text(producer.last_timestamp_ms, now_ms),
            producer.transaction_start_offset if producer.has_open_transaction else _NONE,
        )
        for (topic, partition), producer in producers
    ]
    show_table(console, columns, rows)


def show_hanging(console: Console, verdicts: Sequence[TransactionVerdict], as_json: bool, now_ms: int) -> None:
    if as_json:
        for verdict in verdicts:
            show_json(verdict_document(verdict))
        return
    columns = ("Topic", "Partition", "Producer", "Epoch", "Coordinator epoch", "Start offset", "Last write", "Age", "Why")
    rows = []
    for verdict in verdicts:
        topic, partition, producer = verdict.transaction
        rows.append(
            (
                topic,
                partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.transaction_start_offset,
                time_text(producer.last_timestamp_ms),
                age_text(producer.last_timestamp_ms, now_ms),
                verdict.reason,
            )
        )
    show_table(console, columns, rows)


def verdict_document(verdict: TransactionVerdict) -> dict[str, object]:
    topic, partition, producer = verdict.transaction
    description = verdict.description
    return {
        **_producer_document(topic, partition, producer),
        "transactional_id": None if description is None else description.transactional_id,
        "state": None if description is None else description.state,
        "is_hanging": verdict.is_hanging,
    }


def abort_words(transaction: OpenTransaction) -> str:
    """The command line that ends it."""
    topic, partition, producer = transaction
    return f"tidelog transactions abort {topic} --partition {partition} --start-offset {producer.transaction_start_offset}"


def _producer_document(topic: str, partition: int, producer: ProducerDescription) -> dict[str, object]:
    """Minus one where there is nothing, as Kafka's tools have it, except for the offset of a transaction that there is not."""
    document = {"topic": topic, "partition": partition, **producer._asdict()}
    if not producer.has_open_transaction:
        document["transaction_start_offset"] = None
    return document


def _partition_documents(partitions: Sequence[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": partition} for topic, partition in partitions]


def time_text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return _NONE
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)


def age_text(timestamp_ms: int, now_ms: int) -> str:
    return _NONE if timestamp_ms < 0 else duration(max(0, now_ms - timestamp_ms) / 1000)


def wall_clock_ms() -> int:
    return int(time.time() * 1000)
