"""Letters through an idempotent producer that never gives up, then commits of the group.

The producer keeps the order of what it is given and tries until the brokers take it (no delivery timeout): while they do not, the
offsets of those messages stay unfinished and the worker reads less and less. What the cluster refuses for good stops the worker,
with the letter's offset uncommitted.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from tidelog.client.errors import DeliveryFailed, TidelogError, from_kafka_error
from tidelog.deadletters.letter import Letter
from tidelog.worker.assigned import Assigned
from tidelog.worker.job import Job
from tidelog.worker.options import Options
from tidelog.worker.outbox import Position

log = logging.getLogger("tidelog.worker")

# What the topic allows decides, not the client's own limit of 1 MB.
MESSAGE_BYTES_MAX = 100_000_000
FULL_WAIT_SECONDS = 0.1
REQUEST_SECONDS_MAX = 30.0
METADATA_BYTES_MIN = 64


class PlainOutbox:
    def __init__(self, options: Options, consumer: Any, finished: Callable[[Job], None], metadata: "MetadataLimit") -> None:
        self._addresses = options.addresses
        self._consumer = consumer
        self._finished = finished
        self._metadata = metadata
        self._on_their_way: dict[Assigned, int] = {}
        self._error: TidelogError | None = None
        defaults = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "linger.ms": 5,
            "compression.type": "zstd",
        }
        self._producer = Producer(options.client_config(defaults))

    def send(self, topic: str, partition: int, letter: Letter, job: Job) -> None:
        assigned = job.assigned

        def delivered(error: KafkaError | None, _: object) -> None:
            left = self._on_their_way.get(assigned, 1) - 1
            if left:
                self._on_their_way[assigned] = left
            else:
                self._on_their_way.pop(assigned, None)
            if error is None:
                self._finished(job)
            elif self._error is None:
                self._error = from_kafka_error(error, f"write a letter to {topic}", self._addresses, otherwise=DeliveryFailed)

        view = job.view
        headers = letter.to_headers(view.headers_list)
        while True:
            try:
                self._producer.produce(topic, view.value, view.key, partition=partition, headers=headers, on_delivery=delivered)
            except BufferError:
                self._producer.poll(FULL_WAIT_SECONDS)
            except KafkaException as error:
                raise from_kafka_error(
                    error.args[0], f"write a letter to {topic}", self._addresses, otherwise=DeliveryFailed
                ) from error
            else:
                self._on_their_way[assigned] = self._on_their_way.get(assigned, 0) + 1
                return

    def poll(self) -> None:
        self._producer.poll(0)
        if self._error is not None:
            raise self._error

    def wait(self, seconds: float) -> None:
        self._producer.poll(seconds)

    @property
    def is_urgent(self) -> bool:
        return False

    def is_at(self, assigned: Assigned) -> bool:
        return assigned in self._on_their_way

    def commit(self, positions: Sequence[Position], is_last: bool) -> bool:
        failed, refused = self._commit_once(positions, is_last) if positions else (0, [])
        if refused:
            self._metadata.halve()
            if is_last:
                # There is no next commit: where to go on counts for more than what is finished above.
                failed += self._commit_once([each._replace(metadata="") for each in refused], is_last)[0] - len(refused)
        return not failed

    def _commit_once(self, positions: Sequence[Position], is_last: bool) -> tuple[int, list[Position]]:
        """How many failed, and of these the ones whose metadata is too long for the broker. An asynchronous commit is answered
        later: to the session."""
        offsets = [
            TopicPartition(each.assigned.topic, each.assigned.partition, each.offset, metadata=each.metadata)
            for each in positions
        ]
        try:
            results = self._consumer.commit(offsets=offsets, asynchronous=not is_last)
        except KafkaException as error:
            # The group will read again what this would have told it.
            log.warning("commit: %s", error.args[0].str())
            for each in positions:
                each.assigned.committed = (None, "")
            is_too_long = error.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
            return len(positions), list(positions) if is_too_long else []
        problems = {(each.topic, each.partition): each.error for each in results or () if each.error is not None}
        for (topic, partition), problem in problems.items():
            log.warning("commit of %s-%d: %s", topic, partition, problem.str())
        too_long = {place for place, problem in problems.items() if problem.code() == KafkaError.OFFSET_METADATA_TOO_LARGE}
        return len(problems), [each for each in positions if (each.assigned.topic, each.assigned.partition) in too_long]

    def forget(self, assigned: Assigned) -> None:
        """Its letters may still be written; the next owner reads their messages again, so there may be two copies."""
        self._on_their_way.pop(assigned, None)

    def partitions(self, topic: str) -> int:
        try:
            return len(self._producer.list_topics(topic, timeout=REQUEST_SECONDS_MAX).topics[topic].partitions)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"look up {topic}", self._addresses) from error

    def close(self, timeout: float) -> None:
        self._producer.flush(timeout)


class MetadataLimit:
    """How long the metadata of a commit may be. A broker that allows less says so, and then it is halved."""

    __slots__ = ("bytes_max",)

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max

    def halve(self) -> None:
        self.bytes_max = self.bytes_max // 2 if self.bytes_max > METADATA_BYTES_MIN else 0
