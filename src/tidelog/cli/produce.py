"""``tidelog produce``: send the lines of a file or of standard input as messages, on any Kafka.

A line is a value; with ``--key-separator`` a key and a value; with ``--jsonl`` an object such as
``{"key": "a", "value": "b", "headers": {"c": "d"}, "partition": 0, "timestamp": 1700000000000}``, in which only the value is
required. ``value`` and ``key`` may be any JSON; whatever is not a string is sent as JSON, except ``null``, which is sent as null:
a tombstone on a compacted topic. Because a tombstone deletes, a missing value is an error, and so is an unknown field.
``consume --json`` prints the same format, so a pipe copies a topic.
"""

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO

import typer

from tidelog.cli.completion import complete_topics
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption, read_pairs
from tidelog.cli.output import count_of, make_console, progress_of_bytes, say, show_json
from tidelog.cli.times import read_timestamp
from tidelog.client.errors import TidelogError
from tidelog.client.message import Message
from tidelog.client.raw_producer import RawProducer

app = typer.Typer()

# How long the last messages may take to be acknowledged, once all have been read.
FLUSH_SECONDS_MAX = 60.0
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")

_VALUE_FIELDS = ("value", "value_base64")
_FIELDS = (*_VALUE_FIELDS, "key", "key_base64", "headers", "partition", "timestamp")
# ``consume --json`` prints these as well. They say where a message was, not where it goes.
_IGNORED_FIELDS = ("topic", "offset")

Headers = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class InputMessage:
    """A message as the input describes it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    timestamp: int | None = None


@dataclass(slots=True)
class LineFormat:
    """How a line becomes a message."""

    key_separator: bytes | None
    key: bytes | None
    headers: Headers
    is_json: bool
    is_empty_null: bool
    partition: int | None

    def read(self, text: bytes, number: int) -> InputMessage:
        if self.is_json:
            message = read_json_message(text, number)
        elif self.key_separator is not None:
            key, separator, value = text.partition(self.key_separator)
            if not separator:
                raise CommandFailed(f"line {number} has no key separator {self.key_separator.decode()!r}")
            message = InputMessage(value, key)
        else:
            message = InputMessage(text)
        if self.is_empty_null and message.value == b"":
            message.value = None
        if message.key is None:
            message.key = self.key
        if message.partition is None:
            message.partition = self.partition
        message.headers = self.headers + message.headers
        return message


def read_json_message(text: bytes, number: int) -> InputMessage:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CommandFailed(f"line {number} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CommandFailed(f"line {number} is not a JSON object")
    _check_fields(document, number)
    headers = document.get("headers") or {}
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        return InputMessage(
            _field(document, "value"),
            _field(document, "key"),
            [(str(name), _bytes(value)) for name, value in pairs],
            _whole_number(document.get("partition")),
            _timestamp(document.get("timestamp")),
        )
    except (TypeError, ValueError) as error:
        raise CommandFailed(f"line {number}: {error}") from None


def _check_fields(document: dict[str, Any], number: int) -> None:
    for name in document:
        if name not in _FIELDS and name not in _IGNORED_FIELDS:
            raise CommandFailed(f"line {number} has an unknown field {name!r}; the fields are {', '.join(_FIELDS)}")
    values = [name for name in _VALUE_FIELDS if name in document]
    if not values:
        raise CommandFailed(f'line {number} has no value; to send a null value (a tombstone), write "value": null')
    if len(values) > 1:
        raise CommandFailed(f"line {number} has two values, {' and '.join(values)}; give one")


def _field(document: dict[str, Any], name: str) -> bytes | None:
    """Bytes that are not text are in base64, under a name that says so."""
    encoded = document.get(f"{name}_base64")
    return base64.b64decode(encoded, validate=True) if encoded is not None else _bytes(document.get(name))


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _timestamp(value: object) -> int | None:
    return read_timestamp(value, "timestamp") if isinstance(value, str) else _whole_number(value)


def _whole_number(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"partition and timestamp are whole numbers, not {value!r}")


class DeliveryReport:
    """Counts deliveries, and keeps the first and last offset in each partition, or the first error."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._error: TidelogError | None = None
        self.offsets: dict[int, tuple[int, int]] = {}
        self.delivered = 0
        self.failed = 0

    def __call__(self, error: TidelogError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self._error = self._error or error
            return
        self.delivered += 1
        offset, partition = message.offset, message.partition
        # Without acknowledgement (acks=0) there are no offsets.
        if offset is not None and offset >= 0:
            first, last = self.offsets.get(partition, (offset, offset))
            self.offsets[partition] = min(first, offset), max(last, offset)

    def check(self, unsent: int) -> None:
        if self.failed or unsent:
            late = f"not acknowledged within {FLUSH_SECONDS_MAX:.0f} s"
            reason = late if self._error is None else self._cluster.reason(self._error)
            raise CommandFailed(
                f"{count_of(self.failed + unsent, 'message')} not delivered ({self.delivered:,} were delivered): {reason}"
            )


@app.command("produce", epilog="Example: echo 'customer-42:hello' | tidelog produce orders --key-separator :")
def produce_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to send to.", autocompletion=complete_topics)],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="The file with the lines; - is standard input.")] = "-",
    whole: Annotated[bool, typer.Option("--whole", help="Send the whole file as one message.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="What separates key and value in a line.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message that has none.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every message; repeatable.")
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Each line is a JSON object with value, key, headers, partition and timestamp.")
    ] = False,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="Send empty values as null: tombstones on a compacted topic.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="The partition; chosen by the key if not given.")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="Send at most this many messages per second.")] = None,
    acks: Annotated[
        str, typer.Option("--acks", metavar="0|1|all", help="Who must acknowledge: nobody, the leader, or all in-sync replicas.")
    ] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="|".join(COMPRESSIONS), help="How to compress batches.")
    ] = "none",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the lines of a file, or of standard input, as messages."""
    check_choice(acks, ("-1", *ACKS), "--acks")
    check_choice(compression, COMPRESSIONS, "--compression")
    headers: Headers = [(name, value.encode()) for name, value in read_pairs(header or [], "--header").items()]
    separator = None if key_separator is None else key_separator.encode()
    if separator == b"":
        raise typer.BadParameter("the separator must not be empty", param_hint="--key-separator")
    line = LineFormat(separator, None if key is None else key.encode(), headers, jsonl, null, partition)
    cluster = KafkaCluster(bootstrap, properties)
    with _lines(file, is_whole=whole) as lines:
        report = DeliveryReport(cluster)
        producer = cluster.producer(report, {"acks": acks, "compression.type": compression, "linger.ms": 5})
        started = time.monotonic()
        try:
            with progress_of_bytes("Sending", _size(file)) as on_bytes:
                send_all(producer, topic, _messages(lines, line, on_bytes), report, rate)
        finally:
            unsent = producer.flush(FLUSH_SECONDS_MAX)
        report.check(unsent)
    _show_result(topic, report, time.monotonic() - started, as_json)


def _messages(lines: Iterable[tuple[int, bytes]], line: LineFormat, on_bytes: Callable[[int], None]) -> Iterator[InputMessage]:
    for number, text in lines:
        on_bytes(len(text) + 1)
        yield line.read(text, number)


def _size(file: str) -> int:
    """How much there is to send, as far as it is known."""
    return 0 if file == "-" else os.path.getsize(file)


def send_all(
    producer: RawProducer, topic: str, messages: Iterable[InputMessage], report: DeliveryReport, rate: float | None
) -> None:
    """Hand the messages to the client; stops at the first that could not be delivered."""
    started = time.monotonic()
    for number, message in enumerate(messages):
        if rate is not None:
            _wait(producer, started + number / rate)
        try:
            producer.produce(
                topic,
                message.value,
                message.key,
                headers=message.headers,
                partition=message.partition,
                timestamp=message.timestamp,
            )
        except TidelogError as error:
            raise CommandFailed(f"message {number + 1} cannot be sent: {error.reason or error}") from error
        except (OverflowError, ValueError) as error:
            raise CommandFailed(f"message {number + 1} cannot be sent: {error}") from error
        producer.poll(0)
        if report.failed:
            return


def _wait(producer: RawProducer, due: float) -> None:
    """Deliveries are reported from within ``poll``, which returns as soon as it has reported some."""
    while (left_seconds := due - time.monotonic()) > 0:
        producer.poll(left_seconds)


def check_choice(value: str, choices: tuple[str, ...], option: str) -> None:
    if value not in choices:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}", param_hint=option)


@contextmanager
def _lines(file: str, *, is_whole: bool) -> Iterator[Iterator[tuple[int, bytes]]]:
    """The lines with their numbers; the whole input as the only line if that is wanted."""
    read = _whole if is_whole else _numbered
    if file == "-":
        if sys.stdin.isatty():
            what = "the message" if is_whole else "messages, one per line"
            typer.echo(f"Type {what}; Ctrl-D ends the input.", err=True)
        yield read(sys.stdin.buffer)
    else:
        with open(file, "rb") as opened:
            yield read(opened)


def _whole(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    yield 1, file.read()


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, text in enumerate(file, 1):
        yield number, text.removesuffix(b"\n").removesuffix(b"\r")


def _show_result(topic: str, report: DeliveryReport, seconds: float, as_json: bool) -> None:
    offsets = sorted(report.offsets.items())
    if as_json:
        partitions = [{"partition": index, "first_offset": first, "last_offset": last} for index, (first, last) in offsets]
        show_json({"topic": topic, "messages": report.delivered, "seconds": round(seconds, 6), "partitions": partitions})
        return
    where = "; ".join(
        f"partition {index} offset{'' if first == last else 's'} {first if first == last else f'{first} to {last}'}"
        for index, (first, last) in offsets
    )
    say(make_console(), f"{count_of(report.delivered, 'message')} to {topic}" + (f": {where}" if where else ""))
