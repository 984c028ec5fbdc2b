"""A simulated read_committed reader: it fetches one partition after the other, and leaves out what was aborted, as clients do.

From time to time it rereads everything: the index of aborted transactions filters old records, and memory filters new ones.
"""

from simulation.client import ClientConnection, Environment, fetched_batches
from simulation.group_client import Link
from simulation.history import PartitionId, TopicLife
from simulation.randomness import SimulatedRandomness
from simulation.script import Script, Sleep, Steps
from simulation.transaction_checker import CommittedPoll, TransactionHistory
from simulation.transactional_requests import fetch
from tidelog.records.control import ControlType, parse_control_key
from tidelog.records.errors import RecordError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchedPartition

THINK_US = (1_000, 25_000)
WAIT_MS = (0, 60)
BYTES_MAX = (200, 4_000)
READ_AGAIN_LIKELIHOOD = 0.02


class CommittedReader:
    def __init__(
        self,
        name: str,
        environment: Environment,
        randomness: SimulatedRandomness,
        history: TransactionHistory,
        topic: TopicLife,
        is_final: bool = False,
    ) -> None:
        self.name = name
        self._base = environment.history
        self._randomness = randomness
        self._history = history
        self._topic = topic
        self._is_final = is_final
        self._positions = dict.fromkeys(range(topic.partitions), 0)
        self._ends = dict.fromkeys(range(topic.partitions), -1)
        self._connection = ClientConnection(name, environment, randomness.fork("connection"), Link(lambda: None))
        self._script = Script(name, environment.scheduler, self._connection, self._steps())

    def start(self) -> None:
        self._connection.connect()
        self._connection.watch()
        self._script.start()

    def close(self) -> None:
        self._script.end()
        self._connection.close()

    @property
    def is_caught_up(self) -> bool:
        """Whether every partition was read to its high watermark: then no transaction is open."""
        return self._positions == self._ends

    def behind(self) -> str:
        late = [index for index, position in self._positions.items() if position != self._ends[index]]
        return ", ".join(f"{self._topic.name}-{index} at {self._positions[index]} of {self._ends[index]}" for index in late)

    def _steps(self) -> Steps:
        while True:
            for index in self._positions:
                position = self._positions[index]
                sent_at = self._base.now()
                draw = self._randomness.integer
                answer = yield fetch(self._topic.name, index, position, draw(*WAIT_MS), draw(*BYTES_MAX))
                if answer is not None:
                    self._take(index, position, answer, sent_at)
                yield Sleep(draw(*THINK_US))
            if not self._is_final and self._randomness.fraction() < READ_AGAIN_LIKELIHOOD:
                self._positions = dict.fromkeys(self._positions, 0)

    def _take(self, index: int, position: int, answer: FetchedPartition, sent_at: int) -> None:
        if answer.error is not ErrorCode.NONE:
            if answer.error is not ErrorCode.KAFKA_STORAGE_ERROR:
                self._base.problem("unexpected error", f"{self.name}: Fetch of {self._topic.name}-{index}: {answer.error!r}")
            return
        try:
            records, after = visible_records(answer, position)
        except RecordError as error:
            self._base.problem("corrupt records", f"{self.name}: {self._topic.name}-{index} at {position}: {error}")
            return
        poll = CommittedPoll(
            self.name,
            PartitionId(self._topic.topic_id, index),
            records,
            answer.last_stable_offset,
            answer.high_watermark,
            sent_at,
            self._base.now(),
            self._is_final,
        )
        self._history.polls.append(poll)
        if after > max(position, answer.last_stable_offset):
            text = f"{self.name}: {self._topic.name}-{index} up to {after}, last stable offset {answer.last_stable_offset}"
            self._base.problem("read above the last stable offset", text)
        self._positions[index] = after
        self._ends[index] = answer.high_watermark


def visible_records(answer: FetchedPartition, position: int) -> tuple[list[tuple[int, str]], int]:
    """Return the records of ``answer`` from ``position`` on that a read_committed client shows, and where it continues."""
    waiting = sorted(answer.aborted or (), key=lambda aborted: aborted[1])
    aborted: set[int] = set()
    records: list[tuple[int, str]] = []
    after = position
    for batch in fetched_batches(answer.records):
        header = batch.header
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.pop(0)[0])
        after = max(after, header.last_offset + 1)
        if header.is_control:
            (record,) = batch.records
            if parse_control_key(record.key) is ControlType.ABORT:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            records += [each for each in batch.values() if each[0] >= position]
    return records, after
