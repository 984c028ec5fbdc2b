"""``RawConsumer``: librdkafka's consumer with the toolkit's messages and errors, but without its policies.

``Consumer``, the worker and the readers of retry and dead-letter topics are built on it: they decide when an offset is committed,
where a partition starts, and which error ends the reading. Tools use it where they read given offsets or need to know where a
partition ends. Unless ``config`` names a group, partitions are assigned by hand and nothing is committed.

librdkafka calls back within a poll only, in the thread that polls. An exception of a callback must not reach librdkafka, which
would drop the messages that it is about to hand over. It is kept in ``failures``, and the poll raises it afterwards.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, KafkaError
from confluent_kafka.cimpl import Message as KafkaMessage

from tidelog.client.consumer_settings import COOPERATIVE
from tidelog.client.errors import GroupError, TidelogError, from_kafka_error, kafka_errors
from tidelog.client.librdkafka import ConnectionProblems, librdkafka_configuration, refused_settings, wait_for_broker
from tidelog.client.message import Message, Messages
from tidelog.client.topic_partition import TopicPartition, partition_of, raw_offsets, raw_partitions

BEGINNING: int = OFFSET_BEGINNING
"""A start offset: that of the oldest message that the partition still has."""

_DEFAULTS: Mapping[str, object] = {
    # librdkafka requires a name; without a subscription nothing is done under it.
    "group.id": "tidelog",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
}

# Waiting does not help after these: the user lacks a permission, or another instance has taken over.
_FINAL = frozenset(
    (
        KafkaError._FATAL,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError._AUTHENTICATION,
    )
)

_MAX_POLL_INTERVAL_MS = 300_000
_error_of = KafkaMessage.error

AssignmentCallback = Callable[[list[TopicPartition]], None]
StartOffsets = Mapping[TopicPartition, int] | Mapping[TopicPartition, int | None]
"""The start offsets of partitions; None stands for the committed offset."""


class OffsetCommit(NamedTuple):
    """A committed offset, or one to commit: the offset of the next message to read."""

    partition: TopicPartition
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    """-1 if it is not known."""

    def to_raw(self) -> Any:
        """The commit as a confluent_kafka.TopicPartition."""
        return confluent_kafka.TopicPartition(
            *self.partition, self.offset, metadata=self.metadata, leader_epoch=self.leader_epoch
        )


CommitCallback = Callable[[list[tuple[OffsetCommit, TidelogError | None]]], None]


class EndOfPartition(NamedTuple):
    """The consumer has reached the end of a partition; ``offset`` is that of the next message."""

    topic: str
    partition: int
    offset: int


class FetchProblem(NamedTuple):
    """An error that librdkafka delivered among the messages."""

    partition: TopicPartition | None
    """None if it concerns the consumer as a whole."""
    error: TidelogError
    is_final: bool
    """Whether the consumer cannot continue, however long it waits."""


class Fetched(NamedTuple):
    messages: Messages
    ends: list[EndOfPartition]
    problems: list[FetchProblem]


class RawConsumer:
    """Use it from one thread. ``connect_timeout`` is how long opening waits for a broker; None does not wait at all."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: Mapping[str, object] | None = None,
        *,
        defaults: Mapping[str, object] | None = None,
        refused: Mapping[str, str] | None = None,
        connect_timeout: float | None = None,
        on_commit: CommitCallback | None = None,
    ) -> None:
        """``config`` overrides ``defaults`` and must have nothing of ``refused``; see ``librdkafka_configuration``. ``on_commit``
        gets the results of commits that ``start_commit`` started."""
        problems = ConnectionProblems()
        settings = librdkafka_configuration(
            bootstrap, config, {**_DEFAULTS, **(defaults or {}), "error_cb": problems}, refused=refused
        )
        self.addresses = str(settings["bootstrap.servers"])
        self.failures: list[BaseException] = []
        """Exceptions of callbacks that no poll has raised yet."""
        self._error: TidelogError | None = None
        self.max_poll_interval_ms = int(str(settings.get("max.poll.interval.ms", _MAX_POLL_INTERVAL_MS)))
        self._is_incremental = (
            settings.get("group.protocol") == "consumer" or settings.get("partition.assignment.strategy") == COOPERATIVE
        )
        if on_commit is not None:
            callback = on_commit
            settings["on_commit"] = lambda error, raw: callback(self._commit_results(error, raw))
        with refused_settings():
            self.handle: Any = confluent_kafka.Consumer(settings)
        if connect_timeout is not None:
            try:
                wait_for_broker(self.handle, self.addresses, problems, connect_timeout)
            except TidelogError:
                self.handle.close()
                raise

    def close(self) -> None:
        self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- partitions ----------------------------------------------------------------------------------------------------------

    def assign(self, starts: StartOffsets) -> None:
        """Read these partitions, and no others."""
        with kafka_errors("assign", self.addresses):
            self.handle.assign(_raw_starts(starts))

    def incremental_assign(self, starts: StartOffsets) -> None:
        with kafka_errors("assign", self.addresses):
            self.handle.incremental_assign(_raw_starts(starts))

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        self._call_with(self.handle.incremental_unassign, raw_partitions(partitions), "unassign")

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._call_with(self.handle.pause, raw_partitions(partitions), "pause")

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._call_with(self.handle.resume, raw_partitions(partitions), "resume")

    def _call_with(self, call: Callable[[list[Any]], object], raw: list[Any], what: str) -> None:
        if raw:
            with kafka_errors(what, self.addresses):
                call(raw)

    def cached_end(self, partition: TopicPartition) -> int | None:
        """The end of the partition as the last fetch saw it; None before the first fetch."""
        _, end = self.handle.get_watermark_offsets(confluent_kafka.TopicPartition(*partition), cached=True)
        return end if end >= 0 else None

    def watermarks(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """The log start offset and the end of the partition. The end is the high watermark with read_uncommitted, and the last
        stable offset with read_committed."""
        with kafka_errors(f"look up the end of {partition}", self.addresses):
            low, end = self.handle.get_watermark_offsets(confluent_kafka.TopicPartition(*partition), timeout=timeout)
        return low, end

    def refresh_topics(self, timeout: float) -> None:
        """Look up all topics now. A member of a group joins it again when it sees that one of its topics has grown."""
        with kafka_errors("look up the topics", self.addresses):
            self.handle.list_topics(timeout=timeout)

    def partitions(self, topic: str, timeout: float) -> int:
        """How many partitions the topic has now; asking makes this client notice new ones."""
        with kafka_errors(f"look up {topic}", self.addresses):
            return len(self.handle.list_topics(topic, timeout=timeout).topics[topic].partitions)

    # -- as a member of a group ----------------------------------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        return str(self.handle.memberid())

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        on_assigned: AssignmentCallback,
        on_revoked: AssignmentCallback,
        on_lost: AssignmentCallback | None = None,
    ) -> None:
        """Join the group that ``config`` names. The callbacks run within a poll.

        ``on_assigned`` may call ``accept_assignment``; otherwise partitions start at their committed offsets. During
        ``on_revoked`` the partitions still belong to this member, so it may commit. Without ``on_lost``, ``on_revoked`` is called
        for lost partitions too.
        """
        callbacks = {"on_assign": self._guarded(on_assigned), "on_revoke": self._guarded(on_revoked)}
        if on_lost is not None:
            callbacks["on_lost"] = self._guarded(on_lost)
        with kafka_errors(f"subscribe to {', '.join(topics)}", self.addresses):
            self.handle.subscribe(list(topics), **callbacks)

    def accept_assignment(self, starts: StartOffsets) -> None:
        """Set where each of the new partitions starts. Call it within ``on_assigned``."""
        if not self._is_incremental:
            self.assign(starts)
        elif starts:
            self.incremental_assign(starts)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit for the group and wait for the answer. Raises the error of the first partition that has one."""
        for error in self.try_commit(OffsetCommit(partition, offset) for partition, offset in offsets.items()).values():
            raise error

    def try_commit(self, commits: Iterable[OffsetCommit]) -> dict[TopicPartition, TidelogError]:
        """Commit for the group and return the errors of partitions that it refused. Raises if there is no answer."""
        raw = [each.to_raw() for each in commits]
        with kafka_errors("commit", self.addresses, otherwise=GroupError):
            answer = self.handle.commit(offsets=raw, asynchronous=False)
        return {commit.partition: error for commit, error in self._commit_results(None, answer or ()) if error is not None}

    def start_commit(self, commits: Iterable[OffsetCommit]) -> None:
        """Commit in the background; ``on_commit`` gets the results within a poll."""
        raw = [each.to_raw() for each in commits]
        with kafka_errors("commit", self.addresses, otherwise=GroupError):
            self.handle.commit(offsets=raw, asynchronous=True)

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, OffsetCommit]:
        """The group's commits; partitions without one are missing."""
        raw = raw_partitions(partitions)
        if not raw:
            return {}
        with kafka_errors("committed offsets", self.addresses, otherwise=GroupError):
            answer = self.handle.committed(raw, timeout=timeout)
        found: dict[TopicPartition, OffsetCommit] = {}
        for commit, error in self._commit_results(None, answer):
            if error is not None:
                raise error
            if commit.offset >= 0:
                found[commit.partition] = commit
        return found

    def transaction_offsets(self, commits: Iterable[OffsetCommit]) -> tuple[list[Any], Any]:
        """Return the input of ``Transaction.send_positions``: the offsets, and this member's identity in its group."""
        return [each.to_raw() for each in commits], self.handle.consumer_group_metadata()

    def _guarded(self, callback: AssignmentCallback) -> Callable[[Any, list[Any]], None]:
        def call(_: Any, raw: list[Any]) -> None:
            try:
                callback([partition_of(each) for each in raw])
            except BaseException as error:  # This includes an interrupt: see the module's docstring.
                self.failures.append(error)

        return call

    def _commit_results(self, error: Any, raw: Iterable[Any]) -> list[tuple[OffsetCommit, TidelogError | None]]:
        results: list[tuple[OffsetCommit, TidelogError | None]] = []
        for each in raw:
            partition, problem = partition_of(each), each.error or error
            typed = None
            if problem is not None:
                typed = from_kafka_error(problem, f"commit of {partition}", self.addresses, otherwise=GroupError)
            results.append((OffsetCommit(partition, each.offset, each.metadata or ""), typed))
        return results

    # -- messages ------------------------------------------------------------------------------------------------------------

    def fetch(self, count_max: int, timeout: float) -> Fetched:
        """Up to ``count_max`` messages that have arrived; if there are none, waits ``timeout`` seconds for the first.

        The fast path for many messages. Leaves it to the caller which problems to raise.
        """
        raws: list[Any] = self.handle.consume(count_max, 0)
        if not raws and not self.failures:
            first = self.handle.poll(timeout)
            raws = [] if first is None else [first]
        self._raise_failure()
        if not any(map(_error_of, raws)):
            return Fetched(Messages(raws), [], [])
        fetched = Fetched(Messages([raw for raw in raws if raw.error() is None]), [], [])
        for raw in raws:
            error = raw.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                fetched.ends.append(EndOfPartition(raw.topic(), raw.partition(), raw.offset()))
            else:
                is_final = bool(error.fatal()) or error.code() in _FINAL
                partition = None if raw.topic() is None or raw.partition() < 0 else TopicPartition(raw.topic(), raw.partition())
                fetched.problems.append(
                    FetchProblem(partition, self._read_error(raw, GroupError if is_final else TidelogError), is_final)
                )
        return fetched

    def consume(self, count_max: int, timeout: float) -> list[Message | EndOfPartition]:
        """Up to ``count_max`` messages and ends of partitions, in order. Waits ``timeout`` seconds for that many.

        An error is raised by the next call if there were messages with it, so that none of them is lost.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        with kafka_errors("read", self.addresses):
            raws = self.handle.consume(count_max, timeout)
        self._raise_failure()
        if not any(map(_error_of, raws)):
            return list(Messages(raws))
        found: list[Message | EndOfPartition] = []
        for raw in raws:
            error_of_raw = raw.error()
            if error_of_raw is None:
                found.append(Message((raw.key(), raw.value(), raw)))
            elif error_of_raw.code() == KafkaError._PARTITION_EOF:
                found.append(EndOfPartition(raw.topic(), raw.partition(), raw.offset()))
            elif self._error is None:
                self._error = self._read_error(raw)
        if self._error is not None and not found:
            return self.consume(count_max, timeout)
        return found

    def poll(self, timeout: float) -> Message | EndOfPartition | None:
        """The next message or end of a partition, as soon as there is one; None after ``timeout`` seconds."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def _read_error(self, raw: Any, otherwise: type[TidelogError] = TidelogError) -> TidelogError:
        what = "read" if raw.topic() is None else f"read {raw.topic()}"
        return from_kafka_error(raw.error(), what, self.addresses, otherwise=otherwise)

    def _raise_failure(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def _raw_starts(starts: StartOffsets) -> list[Any]:
    return raw_offsets((partition, OFFSET_INVALID if offset is None else offset) for partition, offset in starts.items())
