"""``tidelog consume``: print the messages of a topic from any point on, on any Kafka.

Without a group the partitions are assigned by hand and nothing is committed, so looking at a topic changes nothing. With
``--group`` the command is an ordinary member: the group decides which partitions it reads and from where. Offsets are committed
batch by batch after the lines were written, so a crash prints some messages again and loses none. A commit that a rebalance has
overtaken is not an error for the same reason: another member prints those messages again.

Without ``--tail`` the command ends where each partition ended when it began; with it, it continues until it is interrupted.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption, partitions_of
from tidelog.cli.output import header_text, make_formatter, tolerate_closed_pipe, warn
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
    format: Callable[[Message], str]
    left: int | None

    @property
    def is_done(self) -> bool:
        return self.left == 0

    def show(self, message: Message) -> None:
        if _matches(self.key, message.key) and _matches(self.value, message.value):
            sys.stdout.write(self.format(message) + "\n")
            self.left = None if self.left is None else self.left - 1


def _matches(pattern: re.Pattern[str] | None, content: bytes | None) -> bool:
    return pattern is None or (content is not None and pattern.search(header_text(content) or "") is not None)


@app.command("consume", epilog="Example: tidelog consume orders --offset -10 --tail --json")
def consume_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Read only this partition; repeatable.")
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
        str | None,
        typer.Option("--group", "-g", metavar="NAME", help="Read as a member of this group, from its committed offsets on."),
    ] = None,
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
    message_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="text|full|json|TEMPLATE", help="How to print a message: '{partition}:{offset} {key}={value}'."
        ),
    ] = "text",
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a topic. Looking changes nothing; with --group, the printed messages are committed."""
    if sum((from_beginning, offset is not None, timestamp is not None)) > 1:
        raise CommandFailed("give only one of --from-beginning, --offset and --timestamp")
    printer = MessagePrinter(
        _pattern(key, "--key"), _pattern(value, "--value"), make_formatter("json" if as_json else message_format), count
    )
    cluster = KafkaCluster(bootstrap, properties)
    if group is not None:
        for option, given in (("--partition", partition), ("--offset", offset), ("--timestamp", timestamp)):
            if given is not None:
                raise CommandFailed(
                    f"{option} does not go with --group: a group reads from its committed offsets; "
                    f"to move them: tidelog groups reset {group} --topic {topic}"
                )
        start = "latest" if tail and not from_beginning else "earliest"
        with cluster.errors(), cluster.admin() as admin, tolerate_closed_pipe():
            bounds = admin.bounds(partitions_of(admin, topic), isolation=cluster.isolation)
            ends = {each.partition: end for each, (_, end) in bounds.items()}
            with cluster.consumer({"group.id": group, "auto.offset.reset": start}) as consumer:
                _GroupReading(cluster, admin, consumer, TopicGroup(topic, group), ends, printer, is_tailing=tail).run()
        return
    place = "beginning" if from_beginning or (offset is None and not tail) else (offset or "end")
    with cluster.errors(), cluster.admin() as admin, tolerate_closed_pipe():
        bounds = admin.bounds(_chosen(topic, partitions_of(admin, topic), partition), isolation=cluster.isolation)
        by_time = None if timestamp is None else _starts_by_time(cluster, admin, bounds, timestamp)
        starts = _starts(bounds, place) if by_time is None else by_time
        unfinished = {each.partition for each, start in starts.items() if tail or start < bounds[each].end}
        ends = {each.partition: end for each, (_, end) in bounds.items()}
        with cluster.consumer() as consumer:
            consumer.assign(starts)
            _print_partitions(cluster, consumer, unfinished, None if tail else ends, printer)


def _print_partitions(
    cluster: KafkaCluster,
    consumer: RawConsumer,
    unfinished: set[int],
    ends: Mapping[int, int] | None,
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
            index = each.partition
            if isinstance(each, EndOfPartition):
                if ends is not None:
                    unfinished.discard(index)
                continue
            if index in unfinished and not printer.is_done and (ends is None or each.offset < ends[index]):
                printer.show(each)
            if ends is not None and each.offset + 1 >= ends[index]:
                unfinished.discard(index)
        sys.stdout.flush()


def _chosen(topic: str, existing: Sequence[TopicPartition], wanted: Sequence[int] | None) -> Sequence[TopicPartition]:
    for index in wanted or ():
        if index >= len(existing):
            raise CommandFailed(f"{topic} has no partition {index}, only 0 to {len(existing) - 1}")
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


def _starts_by_time(
    cluster: KafkaCluster, admin: Admin, bounds: Mapping[TopicPartition, PartitionBounds], text: str
) -> dict[TopicPartition, int]:
    found = admin.list_offsets(bounds, read_timestamp(text), isolation=cluster.isolation)
    return {each: bounds[each].end if start is None else start for each, start in found.items()}


def _pattern(text: str | None, option: str) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise CommandFailed(f"{option} {text}: {error}") from None


class TopicGroup(NamedTuple):
    """The topic to read, and the group to read it with."""

    topic: str
    group_id: str


class _GroupReading:
    """One run of ``consume --group``: prints, then commits what it has printed."""

    def __init__(
        self,
        cluster: KafkaCluster,
        admin: Admin,
        consumer: RawConsumer,
        names: TopicGroup,
        ends: Mapping[int, int],
        printer: MessagePrinter,
        *,
        is_tailing: bool,
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._consumer = consumer
        self._topic, self._group_id = names
        self._ends = ends
        self._printer = printer
        self._is_tailing = is_tailing
        # The assigned partitions that are not read to their end; None until the group has decided.
        self._unfinished: set[int] | None = None

    def run(self) -> None:
        self._consumer.subscribe([self._topic], on_assigned=self._assigned, on_revoked=self._revoked)
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
            warn(f"all partitions of {self._topic} are assigned to other members of {self._group_id}")
        self._unfinished = (self._unfinished or set()) | {each.partition for each in partitions}

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        """Wait for the next assignment if no partition is left."""
        left = (self._unfinished or set()) - {each.partition for each in partitions}
        self._unfinished = left or None

    def _print(self, batch: Sequence[Message | EndOfPartition]) -> dict[TopicPartition, int]:
        """Print messages, and return the next offset of each partition."""
        positions: dict[TopicPartition, int] = {}
        for each in batch:
            index, offset = each.partition, each.offset
            end = self._ends.get(index, 0)
            if isinstance(each, EndOfPartition):
                self._finish(index)
                continue
            if self._printer.is_done or not (self._is_tailing or offset < end):
                continue
            self._printer.show(each)
            positions[TopicPartition(self._topic, index)] = offset + 1
            if offset + 1 >= end:
                self._finish(index)
        return positions

    def _finish(self, index: int) -> None:
        if self._unfinished is not None:
            self._unfinished.discard(index)

    def _commit(self, positions: dict[TopicPartition, int]) -> None:
        if not positions:
            return
        try:
            self._consumer.commit(positions)
        except Rebalanced:
            warn(f"group {self._group_id} rebalanced before the commit: some messages will be printed again")
        except TidelogError as error:
            raise CommandFailed(f"the printed messages could not be committed: {self._cluster.reason(error)}") from error
