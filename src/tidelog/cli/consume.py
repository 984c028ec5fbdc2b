"""``tidelog consume``: print the messages of topics from any point to any other, on any Kafka.

Without a group the partitions are assigned by hand and nothing is committed, so looking at a topic changes nothing. With
``--group`` the command is an ordinary member: the group decides which partitions it reads and from where. Offsets are committed
batch by batch after the lines were written, so a crash prints some messages again and loses none. A commit that a rebalance has
overtaken is not an error for the same reason: another member prints those messages again.

Without ``--tail`` the command ends where each partition ended when it began; with it, it continues until it is interrupted.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import typer

from tidelog.cli.completion import complete_groups, complete_topics
from tidelog.cli.errors import CommandFailed, warn
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption, partitions_of
from tidelog.cli.output import header_text, make_formatter, tolerate_closed_pipe
from tidelog.cli.times import read_timestamp
from tidelog.client.admin import Admin, PartitionBounds
from tidelog.client.errors import Rebalanced, TidelogError
from tidelog.client.message import Message
from tidelog.client.raw_consumer import EndOfPartition, RawConsumer
from tidelog.client.topic_partition import TopicPartition

app = typer.Typer()

# How many messages are taken from the client at once, and how long it waits for them; Ctrl-C works in between.
BATCH_MESSAGES = 1000
POLL_SECONDS = 0.2
# A broker that sends neither messages nor the end of a partition for so long is gone.
SILENCE_SECONDS_MAX = 30.0
# Longer than the session timeout of a member that has just died, for which a group waits.
GROUP_SILENCE_SECONDS_MAX = 60.0
# How long a member waits for partitions before it asks whether there are any left for it.
PATIENCE_SECONDS = 3.0

BEGINNING = ("beginning", "earliest")
END = ("end", "latest")


@dataclass(slots=True)
class MessagePrinter:
    """Prints the messages that the filters accept, ``left`` of them at most (None means all)."""

    key: re.Pattern[str] | None
    value: re.Pattern[str] | None
    write: Callable[[Message], None]
    left: int | None

    @property
    def is_done(self) -> bool:
        return self.left == 0

    def show(self, message: Message) -> None:
        if _matches(self.key, message.key) and _matches(self.value, message.value):
            self.write(message)
            self.left = None if self.left is None else self.left - 1


@dataclass(frozen=True, slots=True)
class ReadingRange:
    """Where reading starts and ends, as the options say it."""

    partitions: list[int] | None
    from_beginning: bool
    offset: str | None
    timestamp: str | None
    until_offset: int | None
    until: str | None
    is_tailing: bool

    def check(self) -> None:
        if sum((self.from_beginning, self.offset is not None, self.timestamp is not None)) > 1:
            raise CommandFailed("give only one of --from-beginning, --offset and --timestamp")
        if self.until_offset is not None and self.until is not None:
            raise CommandFailed("give only one of --until-offset and --until")
        if self.is_tailing and (self.until_offset is not None or self.until is not None):
            raise CommandFailed("--tail has no end: leave it out, or --until-offset and --until")

    def refuse_group(self, group: str, topic: str) -> None:
        for option, given in (
            ("--partition", self.partitions),
            ("--offset", self.offset),
            ("--timestamp", self.timestamp),
            ("--until-offset", self.until_offset),
            ("--until", self.until),
        ):
            if given is not None:
                raise CommandFailed(
                    f"{option} does not go with --group: a group reads from its committed offsets; "
                    f"to move them: tidelog groups reset {group} --topic {topic}"
                )

    def starts(
        self, cluster: KafkaCluster, admin: Admin, bounds: Mapping[TopicPartition, PartitionBounds]
    ) -> dict[TopicPartition, int]:
        if self.timestamp is not None:
            return _offsets_at(cluster, admin, bounds, read_timestamp(self.timestamp))
        is_from_beginning = self.from_beginning or (self.offset is None and not self.is_tailing)
        return _starts(bounds, "beginning" if is_from_beginning else (self.offset or "end"))

    def ends(
        self, cluster: KafkaCluster, admin: Admin, bounds: Mapping[TopicPartition, PartitionBounds]
    ) -> dict[TopicPartition, int]:
        """Where each partition ends for this command: the end of now, or what --until-offset or --until says."""
        if self.until is not None:
            return _offsets_at(cluster, admin, bounds, read_timestamp(self.until, "--until"))
        limit = self.until_offset
        return {each: end if limit is None else min(end, limit) for each, (_, end) in bounds.items()}


def _matches(pattern: re.Pattern[str] | None, content: bytes | None) -> bool:
    return pattern is None or (content is not None and pattern.search(header_text(content) or "") is not None)


TopicsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC...", help="The topics to read.", autocompletion=complete_topics)
]
PatternOption = Annotated[
    str | None, typer.Option("--pattern", metavar="REGEX", help="Read every topic whose whole name matches.")
]
PartitionOption = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Read only this partition; repeatable.")
]
OffsetOption = Annotated[
    str | None,
    typer.Option("--offset", "-o", help="Start here in each partition: a number, beginning, end, or -N from the end."),
]
TimestampOption = Annotated[
    str | None,
    typer.Option("--timestamp", help="Start with the first message of this time: ISO 8601 or milliseconds since 1970."),
]
UntilOffsetOption = Annotated[
    int | None, typer.Option("--until-offset", min=0, help="Stop before this offset in each partition.")
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Stop before the first message of this time.")]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="NAME",
        help="Read as a member of this group, from its committed offsets on.",
        autocompletion=complete_groups,
    ),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format", metavar="text|full|json|TEMPLATE", help="How to print a message: '{partition}:{offset} {key}={value}'."
    ),
]
JsonlOption = Annotated[
    bool, typer.Option("--jsonl", help="Like --json, with timestamps in ISO 8601; produce --jsonl reads it back.")
]
RawOption = Annotated[bool, typer.Option("--raw", help="Write the bytes of the values and nothing else, not even line ends.")]


@app.command("consume", epilog="Example: tidelog consume orders --offset -10 --tail --json")
def consume_command(
    topics: TopicsArgument = None,
    pattern: PatternOption = None,
    partition: PartitionOption = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest message.")] = False,
    offset: OffsetOption = None,
    timestamp: TimestampOption = None,
    until_offset: UntilOffsetOption = None,
    until: UntilOption = None,
    group: GroupOption = None,
    tail: Annotated[
        bool, typer.Option("--tail", "-f", help="Continue with new messages; starts at the end unless told otherwise.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "--max-messages", "-n", min=1, help="Stop after this many messages.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="REGEX", help="Only messages whose key contains a match.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="REGEX", help="Only messages whose value contains a match.")
    ] = None,
    message_format: FormatOption = "text",
    jsonl: JsonlOption = False,
    raw: RawOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of topics. Looking changes nothing; with --group, the printed messages are committed."""
    reading = ReadingRange(partition, from_beginning, offset, timestamp, until_offset, until, tail)
    reading.check()
    writer = _writer("jsonl" if jsonl else "json" if as_json else message_format, raw)
    printer = MessagePrinter(_pattern(key, "--key"), _pattern(value, "--value"), writer, count)
    if group is not None:
        reading.refuse_group(group, (topics or ["TOPIC"])[0])
    names = TopicNames(topics or [], _pattern(pattern, "--pattern"))
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin, tolerate_closed_pipe():
        partitions = names.partitions(admin)
        if group is not None:
            _read_as_member(cluster, admin, partitions, group, printer, reading)
            return
        bounds = admin.bounds(_chosen(partitions, partition), isolation=cluster.isolation)
        starts, ends = reading.starts(cluster, admin, bounds), reading.ends(cluster, admin, bounds)
        unfinished = {each for each, start in starts.items() if tail or start < ends[each]}
        with cluster.consumer() as consumer:
            consumer.assign({each: start for each, start in starts.items() if each in unfinished})
            _print_partitions(cluster, consumer, unfinished, None if tail else ends, printer)


class TopicNames(NamedTuple):
    """The topics that a command line names: one by one, or by a pattern."""

    names: list[str]
    pattern: re.Pattern[str] | None

    def partitions(self, admin: Admin) -> list[TopicPartition]:
        if bool(self.names) == (self.pattern is not None):
            raise CommandFailed("which topics? Give their names, or --pattern REGEX")
        if self.pattern is None:
            return [each for name in dict.fromkeys(self.names) for each in partitions_of(admin, name)]
        cluster = admin.describe_cluster()
        found = [each for name in cluster.topics if self.pattern.fullmatch(name) for each in cluster.partitions(name)]
        if not found:
            raise CommandFailed(f"no topic matches {self.pattern.pattern}; to see the topics: tidelog topics list")
        return found


def _writer(message_format: str, is_raw: bool) -> Callable[[Message], None]:
    formatter = make_formatter(message_format)

    def write_raw(message: Message) -> None:
        sys.stdout.buffer.write(message.value or b"")

    def write_line(message: Message) -> None:
        sys.stdout.write(formatter(message) + "\n")

    return write_raw if is_raw else write_line


def _read_as_member(
    cluster: KafkaCluster,
    admin: Admin,
    partitions: Sequence[TopicPartition],
    group: str,
    printer: MessagePrinter,
    reading: ReadingRange,
) -> None:
    start = "latest" if reading.is_tailing and not reading.from_beginning else "earliest"
    bounds = admin.bounds(partitions, isolation=cluster.isolation)
    ends = {each: end for each, (_, end) in bounds.items()}
    with cluster.consumer({"group.id": group, "auto.offset.reset": start}) as consumer:
        _GroupReading(cluster, admin, consumer, group, ends, printer, is_tailing=reading.is_tailing).run()


def _print_partitions(
    cluster: KafkaCluster,
    consumer: RawConsumer,
    unfinished: set[TopicPartition],
    ends: Mapping[TopicPartition, int] | None,
    printer: MessagePrinter,
) -> None:
    """Print until every partition has reached its end or enough is printed; without ``ends``, until interrupted."""
    silence_seconds = 0.0
    while unfinished and not printer.is_done:
        batch = consumer.consume(BATCH_MESSAGES, POLL_SECONDS)
        silence_seconds = 0.0 if batch else silence_seconds + POLL_SECONDS
        if ends is not None and silence_seconds > SILENCE_SECONDS_MAX:
            raise CommandFailed(f"no broker answers at {cluster.bootstrap}: nothing came for {SILENCE_SECONDS_MAX:.0f} s")
        for each in batch:
            place = TopicPartition(each.topic, each.partition)
            if isinstance(each, EndOfPartition):
                if ends is not None:
                    unfinished.discard(place)
                continue
            if place in unfinished and not printer.is_done and (ends is None or each.offset < ends[place]):
                printer.show(each)
            if ends is not None and each.offset + 1 >= ends[place]:
                unfinished.discard(place)
        sys.stdout.flush()


def _chosen(existing: Sequence[TopicPartition], wanted: Sequence[int] | None) -> Sequence[TopicPartition]:
    counts = Counter(each.topic for each in existing)
    for index in wanted or ():
        for topic, count in counts.items():
            if index >= count:
                raise CommandFailed(f"{topic} has no partition {index}, only 0 to {count - 1}")
    return [each for each in existing if not wanted or each.partition in wanted]


def _starts(bounds: Mapping[TopicPartition, PartitionBounds], text: str) -> dict[TopicPartition, int]:
    """Return where ``--offset`` says that each partition starts."""
    if text in BEGINNING:
        return {each: start for each, (start, _) in bounds.items()}
    if text in END:
        return {each: end for each, (_, end) in bounds.items()}
    try:
        number = int(text)
    except ValueError:
        raise CommandFailed(f"--offset {text}: expected a number, beginning, end, or -N") from None
    if number < 0:
        return {each: max(start, end + number) for each, (start, end) in bounds.items()}
    if not any(start <= number <= end for start, end in bounds.values()):
        known = ", ".join(f"partition {each.partition} has {start} to {end}" for each, (start, end) in bounds.items())
        raise CommandFailed(f"--offset {number} is out of range: {known}")
    return {each: min(max(number, start), end) for each, (start, end) in bounds.items()}


def _offsets_at(
    cluster: KafkaCluster, admin: Admin, bounds: Mapping[TopicPartition, PartitionBounds], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """The first message of that time in each partition, or the partition's end."""
    found = admin.list_offsets(bounds, timestamp_ms, isolation=cluster.isolation)
    return {each: bounds[each].end if offset is None else offset for each, offset in found.items()}


def _pattern(text: str | None, option: str) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise CommandFailed(f"{option} {text}: {error}") from None


class _GroupReading:
    """One run of ``consume --group``: prints, then commits what it has printed."""

    def __init__(
        self,
        cluster: KafkaCluster,
        admin: Admin,
        consumer: RawConsumer,
        group_id: str,
        ends: Mapping[TopicPartition, int],
        printer: MessagePrinter,
        *,
        is_tailing: bool,
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._consumer = consumer
        self._topics = list(dict.fromkeys(each.topic for each in ends))
        self._group_id = group_id
        self._ends = ends
        self._printer = printer
        self._is_tailing = is_tailing
        # The assigned partitions that are not read to their end; None until the group has decided.
        self._unfinished: set[TopicPartition] | None = None

    def run(self) -> None:
        self._consumer.subscribe(self._topics, on_assigned=self._assigned, on_revoked=self._revoked)
        silence_seconds = 0.0
        next_question_seconds = PATIENCE_SECONDS
        while not self._printer.is_done and not self._is_finished:
            batch = self._consumer.consume(BATCH_MESSAGES, POLL_SECONDS)
            silence_seconds = 0.0 if batch else silence_seconds + POLL_SECONDS
            if not self._is_tailing and silence_seconds > GROUP_SILENCE_SECONDS_MAX:
                raise CommandFailed(
                    f"group {self._group_id} assigned no partitions, or sent no messages, for {GROUP_SILENCE_SECONDS_MAX:.0f} s; "
                    f"to see its members: tidelog groups describe {self._group_id} --members"
                )
            if self._unfinished is None and silence_seconds > next_question_seconds:
                next_question_seconds += PATIENCE_SECONDS
                if self._is_idle():
                    self._assigned([])
            positions = self._print(batch)
            sys.stdout.flush()
            self._commit(positions)

    @property
    def _is_finished(self) -> bool:
        return not self._is_tailing and self._unfinished is not None and not self._unfinished

    def _is_idle(self) -> bool:
        """Whether the group has nothing for this member: in the newer protocol the client is not told."""
        group = self._admin.describe_groups([self._group_id])[self._group_id]
        member_id = self._consumer.member_id
        return group.state == "STABLE" and any(not member.partitions for member in group.members if member.member_id == member_id)

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        """A cooperative group passes only what is new; partitions that are read to their end stay finished."""
        if not partitions and self._unfinished is None:
            warn(f"all partitions of {', '.join(self._topics)} are assigned to other members of {self._group_id}")
        self._unfinished = (self._unfinished or set()).union(partitions)

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        """Wait for the next assignment if no partition is left."""
        left = (self._unfinished or set()).difference(partitions)
        self._unfinished = left or None

    def _print(self, batch: Sequence[Message | EndOfPartition]) -> dict[TopicPartition, int]:
        """Print messages, and return the next offset of each partition."""
        positions: dict[TopicPartition, int] = {}
        for each in batch:
            place, offset = TopicPartition(each.topic, each.partition), each.offset
            end = self._ends.get(place, 0)
            if isinstance(each, EndOfPartition):
                self._finish(place)
                continue
            if self._printer.is_done or not (self._is_tailing or offset < end):
                continue
            self._printer.show(each)
            positions[place] = offset + 1
            if offset + 1 >= end:
                self._finish(place)
        return positions

    def _finish(self, place: TopicPartition) -> None:
        if self._unfinished is not None:
            self._unfinished.discard(place)

    def _commit(self, positions: dict[TopicPartition, int]) -> None:
        if not positions:
            return
        try:
            self._consumer.commit(positions)
        except Rebalanced:
            warn(f"group {self._group_id} rebalanced before the commit: some messages will be printed again")
        except TidelogError as error:
            raise CommandFailed(f"the printed messages could not be committed: {self._cluster.reason(error)}") from error
