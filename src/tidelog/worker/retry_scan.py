"""Finds the blocked keys of partitions that were just assigned, by reading their retry partitions once, before anything is
handled.

A consumer of its own, in no group, reads each retry partition from what the group has committed to its end and notes the key,
the offset in the source, the level and the due time of every letter that is not finished. Its end is that of the log, also of
what is in transactions: the one of a worker that went may have its offsets committed a moment before its letters can be read.
The worker polls it between other things, so heartbeats and other partitions go on; the partitions themselves are paused
meanwhile. Partitions without letters, which is nearly all of them nearly always, cost one question for their end.

``BLOCKED_LETTERS_HARD_MAX`` bounds the table: beyond it the worker refuses to run rather than to break the order of keys.
"""

from time import monotonic, sleep
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidelog.client.errors import TidelogError, from_kafka_error
from tidelog.deadletters.letter import Letter
from tidelog.worker.assigned import Assigned, Home
from tidelog.worker.blocked_keys import Place
from tidelog.worker.offsets import PartitionOffsets
from tidelog.worker.options import Options
from tidelog.worker.run_lengths import Run

ASK_SECONDS_MAX = 30.0
LOOK_AGAIN_SECONDS = 0.02
STEP_MESSAGES = 1_000
# Longer than a transaction of a worker or a replay may be open. What is behind somebody else's is not waited for any longer.
TRANSACTION_SECONDS_MAX = 60.0
BLOCKED_LETTERS_HARD_MAX = 1_000_000


class _Reading(NamedTuple):
    assigned: Assigned
    end: int
    finished: PartitionOffsets


class RetryScan:
    def __init__(self, options: Options) -> None:
        self._addresses = options.addresses
        self._consumer = Consumer(
            options.client_config(
                {
                    "group.id": options.group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                }
            )
        )
        self._asker = Consumer(options.client_config({"group.id": options.group, "isolation.level": "read_uncommitted"}))
        self._left: dict[tuple[str, int], _Reading] = {}
        self._held_up: dict[tuple[str, int], float] = {}
        """Those whose rest is in a transaction that is not ended yet, and until when it is waited for."""
        self._homes: list[Home] = []

    @property
    def is_over(self) -> bool:
        return not self._homes

    def begin(self, retries: list[tuple[Assigned, int | None, list[Run]]], homes: list[Home]) -> None:
        """The retry partitions with what is committed of them (None: nothing) and finished above that; the homes to open."""
        for home in homes:
            home.is_scanned = False
            self._homes.append(home)
        positions = []
        for assigned, committed, runs in retries:
            low, end = self._bounds(assigned)
            start = low if committed is None else max(committed, low)
            if start < end:
                place = (assigned.topic, assigned.partition)
                self._left[place] = _Reading(assigned, end, PartitionOffsets(committed, runs))
                positions.append(TopicPartition(*place, start))
        if positions:
            self._consumer.incremental_assign(positions)
        else:
            self._open_homes()

    def forget(self, assigned: Assigned) -> None:
        """It was taken away."""
        if (assigned.topic, assigned.partition) in self._left:
            self._end((assigned.topic, assigned.partition))
        self._homes = [home for home in self._homes if home is not assigned.home]

    def step(self) -> None:
        """Read on for a moment."""
        if not self._homes:
            return
        for raw in self._consumer.consume(STEP_MESSAGES, 0.02):
            reading = self._left.get((raw.topic(), raw.partition()))
            error = raw.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if not error.retriable():
                    raise from_kafka_error(error, f"read {raw.topic()}", self._addresses)
                continue
            if reading is None:
                continue
            place = (raw.topic(), raw.partition())
            if error is None and raw.offset() < reading.end:
                self._note(reading, raw)
            if raw.offset() >= (reading.end - 1 if error is None else reading.end):
                self._end(place)
            elif error is not None:
                self._held_up[place] = monotonic() + TRANSACTION_SECONDS_MAX
        for place, deadline in list(self._held_up.items()):
            if monotonic() >= deadline:
                self._end(place)
        self._open_homes()

    def close(self) -> None:
        self._consumer.close()
        self._asker.close()

    def _end(self, place: tuple[str, int]) -> None:
        del self._left[place]
        self._held_up.pop(place, None)
        self._consumer.incremental_unassign([TopicPartition(*place)])

    def _note(self, reading: _Reading, raw: Any) -> None:
        key = raw.key()
        letter = Letter.from_headers(raw.headers())
        if key is None or letter is None or reading.finished.is_finished_before(raw.offset()):
            return
        blocked = reading.assigned.home.blocked
        if len(blocked) >= BLOCKED_LETTERS_HARD_MAX:
            raise TidelogError(
                f"more than {BLOCKED_LETTERS_HARD_MAX:,} letters wait in the retry topics of {reading.assigned}: the order of "
                'keys cannot be kept over so many; handle them with order="none" first'
            )
        blocked.add(key, letter.offset, Place(reading.assigned.level, letter.due_ms or 0))

    def _bounds(self, assigned: Assigned) -> tuple[int, int]:
        place = TopicPartition(assigned.topic, assigned.partition)
        deadline = monotonic() + ASK_SECONDS_MAX
        while True:
            try:
                low, end = self._asker.get_watermark_offsets(place, timeout=ASK_SECONDS_MAX)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION or monotonic() >= deadline:
                    raise from_kafka_error(error.args[0], f"ask for the end of {assigned}", self._addresses) from error
            else:
                return low, end
            self._see_new_partitions(assigned.topic)
            sleep(LOOK_AGAIN_SECONDS)

    def _see_new_partitions(self, topic: str) -> None:
        """The group was faster to see that the topic has grown."""
        try:
            self._asker.list_topics(topic, timeout=ASK_SECONDS_MAX)
        except KafkaException as error:
            raise from_kafka_error(error.args[0], f"look up {topic}", self._addresses) from error

    def _open_homes(self) -> None:
        waiting = {id(reading.assigned.home) for reading in self._left.values()}
        for home in self._homes:
            home.is_scanned = id(home) not in waiting
        self._homes = [home for home in self._homes if not home.is_scanned]
