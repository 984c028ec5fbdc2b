"""Dead letters of share groups (KIP-1191): what was rejected, or delivered as often as the limit allows, gets a letter on another
topic before it is archived. On a queue topic that asks for it, so does what expires.

A letter names its record in headers (``__dlq.errors.topic``, ``.partition``, ``.offset``, ``.group``, ``.delivery.count`` and
``.message``, all of them text), and has the key, value and headers of the record if the group wants copies. Letters go to the
partition with the number of the record's own, modulo the partitions of their topic, wherever that is led.

The record is archived only when its letter is durable. As long as the letter cannot be written, because the topic is missing or
its leader is away, the record stays where it is, neither delivered nor archived, and the letter is tried again. Whoever waits for
it is told so: at once where only an administrator can help, and after 15 seconds otherwise. A crash in between delivers the
record again and may write a second letter; topic, partition and offset in the headers are the letter's identity.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.error_mapping import error_code_of
from tidelog.controller.errors import ApiError
from tidelog.log.errors import OffsetOutOfRange, RecordTooLarge
from tidelog.log.reading import Isolation, read
from tidelog.ports.steps import Steps
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_partition import CauseOfDeath, DeadRecords
from tidelog.records.batch import build_batch, read_records
from tidelog.records.header import iterate_headers
from tidelog.records.record import Record
from tidelog.replication.errors import NotLeader
from tidelog.replication.partition import Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode
    from tidelog.broker.share_settings import ShareSettings

PRODUCE = ApiKey.PRODUCE, 11
PRODUCE_MS_MAX = 5_000
ACKS_ALL = -1
RETRY_MS = 1_000
# Whoever waits is told after so many failures.
FAILURES_MAX = 15
# Letters of one batch: a slice of the loop's time, and far below the smallest limit of a batch that anybody sets.
LETTERS_MAX = 100
COPY_BYTES_MAX = 256 << 10
# Above the size of any batch that a topic accepts; a damaged one must not exhaust the memory.
BATCH_BYTES_MAX = 64 << 20
BATCH_RECORDS_MAX = 1_000_000
READ_BYTES = 1 << 20
# Where records are copied, the work pauses after this many of them: half a millisecond.
RECORDS_PER_STEP = 500

GROUP_ENABLE = "errors.deadletterqueue.group.enable"
HEADER_PREFIX = "__dlq.errors."
MESSAGES = {
    CauseOfDeath.REJECTED: "The record was rejected by a member of the group.",
    CauseOfDeath.EXHAUSTED: "The record has reached the delivery limit of the group.",
    CauseOfDeath.EXPIRED: "The record expired before a member of the group received it.",
}

OnBuried = Callable[[Exception | None], None]


class Burial(NamedTuple):
    """The records of one share partition that need letters."""

    key: SharePartitionKey
    partition: Partition
    dead: Sequence[DeadRecords]
    is_wanted: Callable[[], bool]
    """Whether the leader that asks is still in use."""
    on_stuck: OnBuried
    """Called once, with the reason, if the letters are still tried when nobody should wait for them any longer."""


class _NoPlaceForLetters(ApiError):
    """Something is wrong with the topic, which only an administrator can put right."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The topic of dead letters, {topic}, {why}.")


class _DeadRecord(NamedTuple):
    offset: int
    delivery_count: int
    cause: CauseOfDeath


class DeadLetterWriter:
    __slots__ = ("_broker", "_settings", "written_count")

    def __init__(self, broker: "BrokerNode", settings: "ShareSettings") -> None:
        self._broker = broker
        self._settings = settings
        self.written_count = 0
        """The letters that have become durable."""

    def write(self, burial: Burial, on_buried: OnBuried) -> None:
        """Call back when every letter is durable, or when nobody wants them any more."""
        records = [
            _DeadRecord(offset, each.delivery_count, each.cause)
            for each in burial.dead
            for offset in range(each.first_offset, each.last_offset + 1)
        ]
        _Writing(self, burial, records, on_buried).go_on()

    def keeps_letters(self, group_id: str) -> bool:
        """Whether the group still wants letters: an administrator may have changed that in the meantime."""
        return bool(self._settings.dead_letter_topic(group_id))

    # -- one batch -----------------------------------------------------------------------------------------------------------

    def letters(self, burial: Burial, records: Sequence[_DeadRecord], *, has_copies: bool) -> Steps[list[Record]]:
        """The letters of as many of the records as fit into one batch, one at least."""
        copies = self._settings.copies_dead_records(burial.key.group_id) and has_copies
        stored = (yield from _stored_records(burial.partition, records[:LETTERS_MAX])) if copies else {}
        now_ms = self._broker.clock.now_ms()
        letters: list[Record] = []
        size = 0
        for number, record in enumerate(records[:LETTERS_MAX]):
            key, value, headers = None, None, _letter_headers(burial, record)
            # A record that compaction has removed has a letter all the same.
            found = stored.get(record.offset)
            if found is not None:
                key, value, headers = found.key, found.value, (*found.headers, *headers)
                size += _copied_bytes(found)
            if letters and size > COPY_BYTES_MAX:
                break
            letters.append(Record(number, now_ms, key, value, headers))
        return letters

    def in_slices(self, steps: Steps[None], on_end: OnBuried) -> None:
        self._broker.work_slices.run(steps, on_end)

    def send(self, burial: Burial, letters: Sequence[Record], on_durable: OnBuried) -> None:
        """Append letters where their partition is led; call back when they are durable there."""
        broker = self._broker
        name = self._settings.dead_letter_topic(burial.key.group_id)
        topic = broker.image.topic(name)
        if topic is None:
            raise _NoPlaceForLetters(name, "does not exist")
        if name == burial.partition.topic:
            # Each letter would be delivered as a record, to be rejected in turn.
            raise _NoPlaceForLetters(name, "is the topic of the records themselves")
        if not broker.settings.values(name)[GROUP_ENABLE]:
            raise _NoPlaceForLetters(name, f"does not have {GROUP_ENABLE}=true")
        index = burial.key.partition % len(topic.partitions)
        leader = topic.partitions[index].leader
        batch = build_batch(letters)
        if leader == broker.config.node_id:
            partition = broker.partitions.find(name, None, index)
            partition.check_open()
            end_offset = partition.append(batch, True).last_offset + 1
            partition.wait_replicated(end_offset, on_durable)
            return
        partitions = [{"index": index, "records": batch}]
        fields = {
            "transactional_id": None,
            "acks": ACKS_ALL,
            "timeout_ms": PRODUCE_MS_MAX,
            "topic_data": [{"name": name, "partition_data": partitions}],
        }

        def replied(response: DecodedMessage) -> None:
            codes = [part.error_code for each in response.responses for part in each.partition_responses]
            code = ErrorCode(codes[0]) if len(codes) == 1 else ErrorCode.UNKNOWN_SERVER_ERROR
            on_durable(None if code is ErrorCode.NONE else ApiError(code, f"broker {leader} refused dead letters: {code.name}"))

        broker.peers.request(leader, PRODUCE, fields, replied, on_durable)

    def count_written(self, letters: int) -> None:
        self.written_count += letters

    def failed(self, burial: Burial, error: Exception, again: Callable[[], None]) -> None:
        group_id, _, index = burial.key
        code, message = error_code_of(error)
        facts = {"group": group_id, "topic": burial.partition.topic, "partition": index, "error": f"{code.name}: {message}"}
        self._broker.report("dead_letter_not_written", facts)
        self._broker.timers.schedule(RETRY_MS, again)


class _Writing:
    """The letters of one burial, batch by batch."""

    __slots__ = ("_burial", "_failures", "_has_copies", "_is_stuck", "_left", "_on_buried", "_sent", "_writer")

    def __init__(self, writer: DeadLetterWriter, burial: Burial, records: list[_DeadRecord], on_buried: OnBuried) -> None:
        self._writer = writer
        self._burial = burial
        self._left = records
        self._on_buried = on_buried
        self._has_copies = True
        self._sent = 0
        self._failures = 0
        self._is_stuck = False

    def go_on(self) -> None:
        if not self._left or not self._writer.keeps_letters(self._burial.key.group_id):
            self._on_buried(None)
        elif not self._burial.is_wanted():
            self._on_buried(NotLeader("the share partition was dropped before its dead letters were written"))
        else:
            self._writer.in_slices(self._send(), self._sent_or_failed)

    def _send(self) -> Steps[None]:
        letters = yield from self._writer.letters(self._burial, self._left, has_copies=self._has_copies)
        self._sent = len(letters)
        self._writer.send(self._burial, letters, self._answered)

    def _sent_or_failed(self, error: Exception | None) -> None:
        if error is not None:
            self._answered(error)

    def _answered(self, error: Exception | None) -> None:
        if error is None:
            self._writer.count_written(self._sent)
            del self._left[: self._sent]
            self._has_copies = True
            self.go_on()
        elif self._has_copies and _is_too_large(error):
            # The topic of letters takes less than the source. A letter that only names its record is better than none.
            self._has_copies = False
            self.go_on()
        else:
            self._failures += 1
            if not self._is_stuck and (isinstance(error, _NoPlaceForLetters) or self._failures >= FAILURES_MAX):
                self._is_stuck = True
                self._burial.on_stuck(_stuck(error))
            self._writer.failed(self._burial, error, self.go_on)


def _stuck(error: Exception) -> ApiError:
    code, message = error_code_of(error)
    return ApiError(code, f"The records are kept back until their dead letters can be written. {message}")


def _is_too_large(error: Exception) -> bool:
    return isinstance(error, RecordTooLarge) or error_code_of(error)[0] is ErrorCode.MESSAGE_TOO_LARGE


def _letter_headers(burial: Burial, record: _DeadRecord) -> tuple[tuple[str, bytes | None], ...]:
    words = {
        "topic": burial.partition.topic,
        "partition": str(burial.key.partition),
        "offset": str(record.offset),
        "group": burial.key.group_id,
        "delivery.count": str(record.delivery_count),
        "message": MESSAGES[record.cause],
    }
    return tuple((HEADER_PREFIX + name, text.encode()) for name, text in words.items())


def _copied_bytes(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + sum(len(name) + len(text or b"") for name, text in record.headers)


def _stored_records(partition: Partition, records: Sequence[_DeadRecord]) -> Steps[dict[int, Record]]:
    """Those of the dead records that the log has, by offset, until they are enough for one batch. They may be the last ones of a
    batch with a million."""
    stored: dict[int, Record] = {}
    size = passed = 0
    wanted = deque(record.offset for record in records)
    while wanted and size <= COPY_BYTES_MAX:
        try:
            offset = max(wanted[0], partition.log.log_start_offset)
            found = read(partition.log, offset, READ_BYTES, Isolation.HIGH_WATERMARK).records
        except OffsetOutOfRange:
            break
        if found is None:
            break
        data: bytes = yield partial(found.file.read, found.position, found.length)
        for position, header in iterate_headers(data):
            offset = header.next_offset
            if header.is_control or not wanted or offset <= wanted[0] or size > COPY_BYTES_MAX:
                continue
            batch: Iterator[Record] = yield partial(
                read_records, data, position, header, size_max=BATCH_BYTES_MAX, count_max=BATCH_RECORDS_MAX
            )
            for record in batch:
                passed += 1
                if not passed % RECORDS_PER_STEP:
                    yield
                while wanted and wanted[0] < record.offset:
                    wanted.popleft()
                if not wanted or size > COPY_BYTES_MAX:
                    break
                if wanted[0] == record.offset:
                    stored[record.offset] = record
                    size += _copied_bytes(record)
        while wanted and wanted[0] < offset:
            wanted.popleft()
    return stored
