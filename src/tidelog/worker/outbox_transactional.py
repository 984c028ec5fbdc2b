"""Letters and offsets in one transaction: a letter is there exactly when the offset of its message is committed.

Letters wait in memory until a commit covers their offset: by its position, or by the finished runs in its metadata. That is the
next one, which is soon when there are any, unless the metadata has no room for the run or other partitions are being
given up. A transaction that is aborted (a rebalance was faster, a broker went) is done again with all of it; partitions that were
taken away meanwhile are left out, their next owner reads them from where they are committed. What ends the producer for good
(another instance with the same id), or a letter that the cluster will never take, stops the worker.

The transaction is open only within ``commit``, so a worker that dies in it holds readers up for ``TRANSACTION_TIMEOUT_MS`` at
most; with ``instance_id`` the next run of the same instance ends it at once.
"""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tidelog.client.errors import InvalidTopic, MessageTooLarge, NotAuthorized, TransactionFailed, UnknownTopic
from tidelog.client.futures import Delivery
from tidelog.client.producer import Producer
from tidelog.deadletters.letter import Letter
from tidelog.worker.assigned import MESSAGE_BYTES, Assigned
from tidelog.worker.job import Job
from tidelog.worker.options import TRANSACTION_TIMEOUT_MS, Options
from tidelog.worker.outbox import Position
from tidelog.worker.outbox_plain import MESSAGE_BYTES_MAX, MetadataLimit
from tidelog.worker.run_lengths import Run, decode

log = logging.getLogger("tidelog.worker")

# A rebalance that is under way makes every try fail until it is over.
LAST_TRIES_MAX = 3
# What no second attempt changes.
_REFUSALS = (MessageTooLarge, UnknownTopic, NotAuthorized, InvalidTopic)

Outgoing = tuple[str, int, Letter, Job]
"""Topic, partition, the letter, and what it is for."""


class TransactionalOutbox:
    def __init__(self, options: Options, consumer: Any, finished: Callable[[Job], None], metadata: MetadataLimit) -> None:
        self._consumer = consumer
        self._finished = finished
        self._metadata = metadata
        self._letters: list[Outgoing] = []
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

    def send(self, topic: str, partition: int, letter: Letter, job: Job) -> None:
        self._letters.append((topic, partition, letter, job))
        self._is_urgent = True
        # It is committed together with its letter or not at all.
        self._finished(job)
        _count(job, 1)

    def poll(self) -> None:
        """Nothing comes between two commits."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @property
    def is_urgent(self) -> bool:
        return self._is_urgent

    def is_at(self, _: Assigned) -> bool:
        """What waits goes with the last commit."""
        return False

    def commit(self, positions: Sequence[Position], is_last: bool) -> bool:
        tries = LAST_TRIES_MAX if is_last else 1
        while True:
            letters = to_send(self._letters, is_last)
            if not positions and not letters:
                self._is_urgent = False
                return True
            failed = self._commit_once(letters, positions)
            if failed is None:
                return True
            tries -= 1
            if not tries:
                break
            if _is_metadata_refused(failed):
                # There is no next commit: where to go on counts for more than what is finished above.
                positions = [each._replace(metadata="") for each in positions]
                for each in positions:
                    each.assigned.committed = (each.offset, "")
        for each in positions:
            each.assigned.committed = (None, "")
        return False

    def _commit_once(self, letters: list[Outgoing], positions: Sequence[Position]) -> TransactionFailed | None:
        """None when it is done."""
        deliveries: list[Delivery] = []
        try:
            with self._transaction as transaction:
                for topic, partition, letter, job in letters:
                    view = job.view
                    headers = letter.to_headers(view.headers_list)
                    deliveries.append(transaction.send(topic, view.value, key=view.key, headers=headers, partition=partition))
                transaction.send_offsets(
                    self._consumer,
                    [
                        TopicPartition(each.assigned.topic, each.assigned.partition, each.offset, metadata=each.metadata)
                        for each in positions
                    ],
                )
        except TransactionFailed as failed:
            log.warning("commit: %s", failed)
            for delivery in deliveries:
                problem = delivery.exception(0) if delivery.done() else None
                if isinstance(problem, _REFUSALS):
                    raise problem from failed
            if _is_metadata_refused(failed):
                self._metadata.halve()
            return failed
        sent = {id(each) for each in letters}
        self._letters = [each for each in self._letters if id(each) not in sent]
        self._is_urgent = False
        for *_, job in letters:
            _count(job, -1)
        return None

    def forget(self, assigned: Assigned) -> None:
        self._letters = [each for each in self._letters if each[3].assigned is not assigned]

    def partitions(self, topic: str) -> int:
        return self._producer.partitions(topic)

    def close(self, timeout: float) -> None:
        self._producer.close(timeout)


def to_send(letters: Sequence[Outgoing], is_last: bool) -> list[Outgoing]:
    """Those whose offsets are finished in what was last committed of their partitions, or is about to be.

    While messages of a partition wait for their keys they may wait for just these letters, so there none is held back for long
    metadata: a crash may then repeat one. What is given up is read again by somebody else in any case.
    """
    finished: dict[Assigned, tuple[int, list[Run]]] = {}
    found: list[Outgoing] = []
    for each in letters:
        assigned, offset = each[3].assigned, each[3].offset
        if assigned not in finished:
            position, metadata = assigned.committed
            finished[assigned] = (0, []) if position is None else (position, decode(position, metadata))
        position, runs = finished[assigned]
        is_covered = offset < position or any(first <= offset < end for first, end in runs)
        if is_covered or (assigned.parked and not is_last):
            found.append(each)
    return found


def _count(job: Job, change: int) -> None:
    """Letters in memory are part of what is read ahead, and so bounded by it."""
    job.assigned.backlog += change
    job.assigned.backlog_bytes += change * (len(job.view[2]) + MESSAGE_BYTES)


def _is_metadata_refused(failed: TransactionFailed) -> bool:
    cause = failed.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
