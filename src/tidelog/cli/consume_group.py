"""Consuming as a member of a group: the group says which partitions and from where, and what was printed is committed.

Offsets are committed after the lines were written out, batch by batch: a crash in between prints some messages again and loses
none. A commit that a rebalance has overtaken is not an error for the same reason: another member prints them again.

Without ``--tail`` it ends when each partition that it was given has been read to where it ended at the beginning.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_facts import describe
from tidelog.cli.kafka import METADATA_SECONDS_MAX, Cluster
from tidelog.cli.output import warn

BATCH_MESSAGES = 1000
POLL_SECONDS = 0.2
# Longer than the session time-out of a member that has just died, which is what a group waits for.
SILENCE_SECONDS_MAX = 60.0
# After so long without partitions the group is asked whether there will be any.
PATIENCE_SECONDS = 3.0

_OVERTAKEN = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST,
)


def consume_as_member(
    cluster: Cluster,
    topic: str,
    group_id: str,
    accept: Callable[[Any], bool],
    write: Callable[[Any], str],
    count: int | None,
    *,
    is_tailing: bool,
    is_latest: bool,
) -> None:
    """``is_latest``: where the group has no offset, it begins at the end."""
    consumer = cluster.consumer(
        {
            "group.id": group_id,
            "enable.partition.eof": True,
            "auto.offset.reset": "latest" if is_latest else "earliest",
        }
    )
    try:
        Reader(cluster, consumer, topic, group_id, accept, write, count, is_tailing).run()
    except BrokenPipeError:
        # ``| head`` has seen enough; what it has not seen is not committed. Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        consumer.close()


class Reader:
    def __init__(
        self,
        cluster: Cluster,
        consumer: Any,
        topic: str,
        group_id: str,
        accept: Callable[[Any], bool],
        write: Callable[[Any], str],
        count: int | None,
        is_tailing: bool,
    ) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._topic = topic
        self._group_id = group_id
        self._accept = accept
        self._write = write
        self._left = count
        self._is_tailing = is_tailing
        self._ends: dict[int, int] = {}
        # The partitions that it was given and has not read to their end; None before the group has decided.
        self._unfinished: set[int] | None = None

    def run(self) -> None:
        partitions = sorted(self._cluster.topic(self._consumer, self._topic).partitions)
        with self._cluster.errors():
            for index in partitions:
                self._ends[index] = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, index), METADATA_SECONDS_MAX
                )[1]
            self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
        silence_seconds = 0.0
        next_question_seconds = PATIENCE_SECONDS
        while self._left != 0 and not self._is_finished:
            with self._cluster.errors():
                messages = self._consumer.consume(BATCH_MESSAGES, POLL_SECONDS)
            silence_seconds = 0.0 if messages else silence_seconds + POLL_SECONDS
            if not self._is_tailing and silence_seconds > SILENCE_SECONDS_MAX:
                raise CommandFailed(
                    f"group {self._group_id} gave out no partitions, or they gave no messages, for {SILENCE_SECONDS_MAX:.0f} s"
                )
            if self._unfinished is None and silence_seconds > next_question_seconds:
                next_question_seconds += PATIENCE_SECONDS
                if self._is_idle():
                    self._assigned(None, [])
            positions = self._print(messages)
            sys.stdout.flush()
            self._commit(positions)

    @property
    def _is_finished(self) -> bool:
        return not self._is_tailing and self._unfinished is not None and not self._unfinished

    def _is_idle(self) -> bool:
        """Is it a member for whom there is nothing? In the newer protocol the client is told nothing then."""
        (group,) = describe(self._cluster, self._cluster.admin(), [self._group_id])
        member_id = self._consumer.memberid()
        return group.state == "Stable" and any(not member.partitions for member in group.members if member.member_id == member_id)

    def _assigned(self, _: Any, places: list[Any]) -> None:
        """By a cooperative group only what is new; those that are read to their end stay so."""
        if not places and self._unfinished is None:
            warn(f"all partitions of {self._topic} are with other members of {self._group_id}")
        self._unfinished = (self._unfinished or set()) | {place.partition for place in places}

    def _revoked(self, _: Any, places: list[Any]) -> None:
        """Given to others, or to be given out anew: with nothing left it waits for what comes."""
        left = (self._unfinished or set()) - {place.partition for place in places}
        self._unfinished = left or None

    def _print(self, messages: list[Any]) -> dict[int, int]:
        """Returns where each partition goes on."""
        positions: dict[int, int] = {}
        for message in messages:
            index = message.partition()
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise CommandFailed(self._cluster.reason(error))
                self._finish(index)
                continue
            if self._left == 0 or not self._is_wanted(message):
                continue
            if self._accept(message):
                sys.stdout.write(self._write(message) + "\n")
                self._left = None if self._left is None else self._left - 1
            positions[index] = message.offset() + 1
            if message.offset() + 1 >= self._ends.get(index, 0):
                self._finish(index)
        return positions

    def _is_wanted(self, message: Any) -> bool:
        return self._is_tailing or message.offset() < self._ends.get(message.partition(), 0)

    def _finish(self, index: int) -> None:
        if self._unfinished is not None:
            self._unfinished.discard(index)

    def _commit(self, positions: dict[int, int]) -> None:
        if not positions:
            return
        places = [TopicPartition(self._topic, index, offset) for index, offset in positions.items()]
        try:
            done = self._consumer.commit(offsets=places, asynchronous=False)
            problems = [place.error for place in done if place.error is not None]
        except KafkaException as error:
            problems = [error.args[0]]
        for problem in problems:
            if problem.code() not in _OVERTAKEN:
                raise CommandFailed(f"what was printed could not be committed: {self._cluster.reason(problem)}")
        if problems:
            warn(f"a rebalance of {self._group_id} came before the commit: some messages will be printed again")
