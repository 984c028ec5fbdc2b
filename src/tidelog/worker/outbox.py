"""The last stage: letters and commits, written plainly or in transactions. ``CommitSchedule`` decides when and what to commit.

``PlainOutbox`` writes letters through an idempotent producer that retries without limit, then commits. All in-sync replicas
acknowledge a letter before the offset of its message counts as finished, so the letter is there before that offset is committed;
a crash in between makes a second copy. The producer keeps the order of its letters and tries until the brokers accept them (there
is no delivery timeout). In the meantime the offsets of those messages stay unfinished and the worker reads less and less. A
letter that the cluster refuses for good stops the worker, with its message uncommitted.

``TransactionalOutbox`` commits letters and offsets in one transaction: a letter is there exactly when the offset of its message
is committed. Letters wait in memory until a commit covers their offset, by its position or by the finished runs in its metadata.
That is the next commit, which comes soon, unless the metadata has no room for the run or other partitions are being revoked.
There is one exception: while messages of its partition are parked (``order="key"``), a letter for whose run the metadata has no
room does not wait, because they may wait for just this letter. A crash may then write it twice (``covered_letters``). A
transaction that is aborted (a rebalance was faster, a broker went away) is repeated as a whole; partitions that were taken away
in the meantime are left out, because their next owner reads them from their committed offsets. An error that ends the producer
for good (another instance with the same id), or a letter that the cluster never accepts, stops the worker. The transaction is
open only within ``commit``, so a worker that dies in it holds readers up for ``TRANSACTION_TIMEOUT_MS`` at most; with
``instance_id`` the next run of the same instance ends it at once.

The outbox knows nothing of the stages before it: what was acknowledged is returned as values.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tidelog.client.errors import (
    CommitMetadataTooLarge,
    InvalidTopic,
    MessageTooLarge,
    NotAuthorized,
    TidelogError,
    TransactionFailed,
    UnknownTopic,
)
from tidelog.client.futures import Delivery
from tidelog.client.message import Message
from tidelog.client.producer import Producer
from tidelog.client.raw_consumer import OffsetCommit, RawConsumer
from tidelog.client.raw_producer import RawProducer
from tidelog.client.tracing import messaging_spans
from tidelog.deadletters.letter import Letter
from tidelog.worker.offsets import Run, decode_runs, encode_runs
from tidelog.worker.options import TRANSACTION_TIMEOUT_MS, WorkerOptions
from tidelog.worker.partitions import AssignedPartition, WorkItem

log = logging.getLogger("tidelog.worker")

# The topic's limit decides, not the client's own limit of 1 MB.
MESSAGE_BYTES_MAX = 100_000_000
REQUEST_SECONDS_MAX = 30.0
METADATA_BYTES_MIN = 64
# Letters of a transactional worker become visible with the next commit; within this time some more may join it.
URGENT_MS = 50
# A rebalance that is under way makes every attempt fail until it is over.
LAST_ATTEMPTS_MAX = 3
# A second attempt does not help after these errors.
_REFUSALS = (MessageTooLarge, UnknownTopic, NotAuthorized, InvalidTopic)


class OutgoingLetter(NamedTuple):
    """A letter to write, and the message that it is for."""

    topic: str
    letter: Letter
    item: WorkItem

    @property
    def partition(self) -> int:
        """The letter's partition number, which is that of its message."""
        return self.item.assigned.name.partition

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self.letter.to_headers(self.item.message.headers_list)


class PartitionCommit(NamedTuple):
    """The offset and metadata to commit for one partition."""

    assigned: AssignedPartition
    offset: int
    metadata: str

    def to_offset_commit(self) -> OffsetCommit:
        return OffsetCommit(self.assigned.name, self.offset, self.metadata)


class Outbox(Protocol):
    def send(self, outgoing: OutgoingLetter) -> bool:
        """Write the letter. Returns True if its message counts as finished now, False if only when ``poll`` returns it."""
        ...

    def poll(self) -> list[WorkItem]:
        """The messages whose letters were acknowledged since the last call. Raises if a letter cannot be written at all: the
        worker must stop, and nothing is lost."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until something is acknowledged, for ``seconds`` at most."""
        ...

    @property
    def is_urgent(self) -> bool:
        """Whether letters wait for a commit."""
        ...

    def has_letters(self, assigned: AssignedPartition, /) -> bool:
        """Whether letters of this partition are on their way."""
        ...

    def commit(self, commits: Sequence[PartitionCommit], is_last: bool) -> bool:
        """Commit. With ``is_last`` the partitions are being revoked: returns when the commit is done, or cannot be done any more.
        Returns False if it is known to have failed."""
        ...

    def forget(self, assigned: AssignedPartition) -> None:
        """Called when the partition was taken away: what was not committed belongs to its next owner."""
        ...

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has, asked of the cluster, so that letters can go to new ones."""
        ...

    def close(self, timeout: float) -> None: ...


class MetadataLimit:
    """The longest metadata of a commit. It is halved when a broker says that it allows less."""

    __slots__ = ("bytes_max",)

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max

    def halve(self) -> None:
        self.bytes_max = self.bytes_max // 2 if self.bytes_max > METADATA_BYTES_MIN else 0


class CommitSchedule:
    """When and what to commit: every ``interval`` seconds, sooner when letters wait for it, and at the end of an assignment.

    The position of a partition is the first offset that is not finished; what is finished above it goes into the metadata. Only
    changes since the last commit are sent.
    """

    def __init__(self, outbox: Outbox, limit: MetadataLimit, interval: float) -> None:
        self._outbox = outbox
        self._limit = limit
        self._interval_ms = interval * 1000
        self._last_ms = 0

    def tick(self, partitions: Iterable[AssignedPartition], now_ms: int) -> None:
        passed_ms = now_ms - self._last_ms
        if passed_ms >= self._interval_ms or (passed_ms >= URGENT_MS and self._outbox.is_urgent):
            self.commit(partitions, now_ms)

    def commit(self, partitions: Iterable[AssignedPartition], now_ms: int, *, is_last: bool = False) -> bool:
        """Returns False if the commit is known to have failed: its messages are handled again."""
        self._last_ms = now_ms
        commits = []
        for assigned in partitions:
            offset = assigned.offsets.position
            if offset is None:
                continue
            metadata = encode_runs(offset, assigned.offsets.finished_runs(), self._limit.bytes_max)
            if (offset, metadata) != assigned.committed:
                assigned.note_commit(offset, metadata)
                commits.append(PartitionCommit(assigned, offset, metadata))
        return self._outbox.commit(commits, is_last)


class PlainOutbox:
    def __init__(self, options: WorkerOptions, consumer: RawConsumer, limit: MetadataLimit) -> None:
        self._consumer = consumer
        self._limit = limit
        self._under_way: dict[AssignedPartition, int] = {}
        self._acknowledged: list[WorkItem] = []
        self._error: TidelogError | None = None
        config = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "linger.ms": 5,
            "compression.type": "zstd",
        }
        self._producer = RawProducer(options.addresses, {**config, **options.connection_config()})
        self._spans = messaging_spans()

    def send(self, outgoing: OutgoingLetter) -> bool:
        item = outgoing.item
        assigned = item.assigned

        def delivered(error: TidelogError | None, _: Message) -> None:
            left = self._under_way.get(assigned, 1) - 1
            if left:
                self._under_way[assigned] = left
            else:
                self._under_way.pop(assigned, None)
            if error is None:
                self._acknowledged.append(item)
            elif self._error is None:
                self._error = error

        headers = outgoing.headers()
        if self._spans is not None:
            self._spans.sent(outgoing.topic, headers, outgoing.partition)
        self._producer.produce(
            outgoing.topic,
            item.message.value,
            item.message.key,
            headers=headers,
            partition=outgoing.partition,
            on_delivery=delivered,
        )
        self._under_way[assigned] = self._under_way.get(assigned, 0) + 1
        return False

    def poll(self) -> list[WorkItem]:
        self._producer.poll(0)
        if self._error is not None:
            raise self._error
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def wait(self, seconds: float) -> None:
        self._producer.poll(seconds)

    @property
    def is_urgent(self) -> bool:
        return False

    def has_letters(self, assigned: AssignedPartition) -> bool:
        return assigned in self._under_way

    def commit(self, commits: Sequence[PartitionCommit], is_last: bool) -> bool:
        if not commits:
            return True
        errors = self._try_commit(commits, is_last)
        too_long = [each for each in commits if isinstance(errors.get(each), CommitMetadataTooLarge)]
        if too_long:
            self._limit.halve()
            if is_last:
                # There is no next commit: the position counts for more than what is finished above it.
                errors_again = self._try_commit([each._replace(metadata="") for each in too_long], is_last)
                return len(errors) == len(too_long) and not errors_again
        return not errors

    def _try_commit(self, commits: Sequence[PartitionCommit], is_last: bool) -> dict[PartitionCommit, TidelogError]:
        """The errors by commit. The result of a commit that is not the last arrives later, at the session."""
        requests = [each.to_offset_commit() for each in commits]
        errors: dict[PartitionCommit, TidelogError] = {}
        try:
            if is_last:
                refused = self._consumer.try_commit(requests)
                errors = {each: refused[each.assigned.name] for each in commits if each.assigned.name in refused}
            else:
                self._consumer.start_commit(requests)
        except TidelogError as error:
            for each in commits:
                each.assigned.forget_commit()
            errors = dict.fromkeys(commits, error)
        # The group reads again what a failed commit would have covered.
        for problem in dict.fromkeys(map(str, errors.values())):
            log.warning("%s", problem)
        return errors

    def forget(self, assigned: AssignedPartition) -> None:
        """Forget the partition. Its letters may still be written, and the next owner reads their messages again, so there may be
        two copies."""
        self._under_way.pop(assigned, None)

    def partitions(self, topic: str) -> int:
        return self._producer.partitions(topic, REQUEST_SECONDS_MAX)

    def close(self, timeout: float) -> None:
        self._producer.flush(timeout)


class TransactionalOutbox:
    def __init__(self, options: WorkerOptions, consumer: RawConsumer, limit: MetadataLimit) -> None:
        self._consumer = consumer
        self._limit = limit
        self._letters: list[OutgoingLetter] = []
        self._is_urgent = False
        instance = options.instance_id or secrets.token_hex(8)
        self._producer = Producer(
            options.addresses,
            transactional_id=f"{options.group}.worker.{instance}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
            config={**options.connection_config(), "message.max.bytes": MESSAGE_BYTES_MAX},
        )
        self._transaction = self._producer.transaction()

    def send(self, outgoing: OutgoingLetter) -> bool:
        """Keep the letter. Its message is finished at once: it is committed together with its letter or not at all."""
        self._letters.append(outgoing)
        self._is_urgent = True
        outgoing.item.assigned.hold_letter(outgoing.item)
        return True

    def poll(self) -> list[WorkItem]:
        return []

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @property
    def is_urgent(self) -> bool:
        return self._is_urgent

    def has_letters(self, _: AssignedPartition) -> bool:
        """Waiting letters go with the last commit."""
        return False

    def commit(self, commits: Sequence[PartitionCommit], is_last: bool) -> bool:
        attempts = LAST_ATTEMPTS_MAX if is_last else 1
        while True:
            letters = covered_letters(self._letters, is_last)
            if not commits and not letters:
                self._is_urgent = False
                return True
            failed = self._try_commit(letters, commits)
            if failed is None:
                return True
            attempts -= 1
            if not attempts:
                break
            if isinstance(failed.__cause__, CommitMetadataTooLarge):
                # There is no next commit: the position counts for more than what is finished above it.
                commits = [each._replace(metadata="") for each in commits]
                for each in commits:
                    each.assigned.note_commit(each.offset, "")
        for each in commits:
            each.assigned.forget_commit()
        return False

    def _try_commit(self, letters: list[OutgoingLetter], commits: Sequence[PartitionCommit]) -> TransactionFailed | None:
        """Return None when the commit is done."""
        deliveries: list[Delivery] = []
        try:
            with self._transaction as transaction:
                for outgoing in letters:
                    message = outgoing.item.message
                    deliveries.append(
                        transaction.send(
                            outgoing.topic,
                            message.value,
                            key=message.key,
                            headers=outgoing.headers(),
                            partition=outgoing.partition,
                        )
                    )
                transaction.send_positions(*self._consumer.transaction_offsets(each.to_offset_commit() for each in commits))
        except TransactionFailed as failed:
            log.warning("commit: %s", failed)
            for delivery in deliveries:
                problem = delivery.exception(0) if delivery.done() else None
                if isinstance(problem, _REFUSALS):
                    raise problem from failed
            if isinstance(failed.__cause__, CommitMetadataTooLarge):
                self._limit.halve()
            return failed
        sent = {id(each) for each in letters}
        self._letters = [each for each in self._letters if id(each) not in sent]
        self._is_urgent = False
        for outgoing in letters:
            outgoing.item.assigned.release_letter(outgoing.item)
        return None

    def forget(self, assigned: AssignedPartition) -> None:
        self._letters = [each for each in self._letters if each.item.assigned is not assigned]

    def partitions(self, topic: str) -> int:
        return self._producer.partitions(topic)

    def close(self, timeout: float) -> None:
        self._producer.close(timeout)


def covered_letters(letters: Sequence[OutgoingLetter], is_last: bool) -> list[OutgoingLetter]:
    """The letters whose offsets are finished in what was last committed of their partitions, or is about to be.

    While messages of a partition are parked, they may wait for just these letters, so no letter is held back because of long
    metadata: a crash may then repeat one. What is revoked is read again by its next owner in any case.
    """
    finished: dict[AssignedPartition, tuple[int, list[Run]]] = {}
    found: list[OutgoingLetter] = []
    for each in letters:
        assigned, offset = each.item.assigned, each.item.offset
        if assigned not in finished:
            position, metadata = assigned.committed
            finished[assigned] = (0, []) if position is None else (position, decode_runs(position, metadata))
        position, runs = finished[assigned]
        is_covered = offset < position or any(first <= offset < end for first, end in runs)
        if is_covered or (assigned.parked and not is_last):
            found.append(each)
    return found
