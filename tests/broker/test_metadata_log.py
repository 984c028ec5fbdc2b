from collections.abc import Callable

import pytest

from simulation.disk import Crashed
from tests.log.harness import Store
from tidelog.broker.metadata_log import METADATA_LOG_SETTINGS, METADATA_TOPIC_ID, PartitionMetadataLog
from tidelog.log.errors import LogOffline
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.raft.quorum_state import QuorumStateFile
from tidelog.raft.single_voter import CommittedBatch, MetadataQuorum


class Machine:
    """A store and the quorum on its metadata log."""

    def __init__(self, seed: int = 1) -> None:
        self.store = Store(METADATA_LOG_SETTINGS, seed=seed, is_open=False)
        self.replayed: list[bytes] = []
        self.quorum: MetadataQuorum

    def start(self) -> None:
        self.replayed = []
        log = PartitionMetadataLog(self.store.open())
        state_file = QuorumStateFile(self.store.disk, log.log.directory)
        self.quorum = MetadataQuorum(1, log, state_file, self.store.clock, self._replay)
        assert self.store.wait(lambda done: self.quorum.start(done)) is None

    def propose(self, *values: bytes) -> BaseException | None:
        return self.store.wait(lambda done: self.quorum.propose(values, done))

    def _replay(self, batch: CommittedBatch) -> None:
        self.replayed += batch.values


def test_the_log_is_made_with_kafkas_name_and_id() -> None:
    machine = Machine()
    machine.start()
    log = machine.store.log(METADATA_TOPIC, 0)
    assert log.topic_id == METADATA_TOPIC_ID == bytes.fromhex("00000000000000000000000000000001")
    assert log.high_watermark == log.log_end_offset == 1


def test_what_was_committed_is_there_after_a_clean_stop() -> None:
    machine = Machine()
    machine.start()
    assert machine.propose(b"a", b"b") is None
    machine.store.close()
    machine.start()
    assert machine.replayed == [b"a", b"b"]
    assert machine.propose(b"c") is None
    assert machine.replayed == [b"a", b"b", b"c"]
    assert machine.quorum.epoch == 2


def test_what_was_committed_is_there_after_a_power_cut() -> None:
    machine = Machine()
    machine.start()
    assert machine.propose(b"a") is None
    machine.quorum.propose([b"never heard of"], lambda error: None)
    machine.store.lose_power()
    machine.start()
    assert machine.replayed == [b"a"]
    assert machine.quorum.epoch == 2


def test_a_long_log_is_read_in_several_runs() -> None:
    machine = Machine()
    machine.start()
    values = [bytes([number]) * 300_000 for number in range(12)]
    for value in values:
        assert machine.propose(value) is None
    machine.store.close()
    machine.start()
    assert machine.replayed == values


def test_a_failed_sync_takes_the_log_offline_and_nothing_is_replayed() -> None:
    machine = Machine()
    machine.start()
    machine.store.disk.faults.fail("sync", lambda path: METADATA_TOPIC in path)
    error = machine.propose(b"a")
    assert isinstance(error, LogOffline)
    assert machine.replayed == []
    assert machine.propose(b"b") is not None


def test_an_offline_log_is_not_made_again() -> None:
    machine = Machine()
    machine.start()
    directory = machine.store.directory
    del directory.logs[METADATA_TOPIC, 0]
    directory.offline[METADATA_TOPIC, 0] = "broken"
    with pytest.raises(LogOffline, match="broken"):
        PartitionMetadataLog(directory)


def dying_at(operation_number: int) -> Callable[[str, str], None]:
    left = operation_number

    def before(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crashed

    return before


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_before_any_operation_loses_nothing_committed_and_repeats_no_epoch(seed: int) -> None:
    for operation_number in range(60):
        machine = Machine(seed * 1000 + operation_number)
        machine.store.disk.on_operation = dying_at(operation_number)
        committed: list[bytes] = []
        epoch = 0
        try:
            machine.start()
            epoch = machine.quorum.epoch
            for value in (b"a", b"b", b"c"):
                assert machine.propose(value) is None
                committed.append(value)
        except Crashed:
            pass
        machine.store.lose_power("some")
        machine.start()
        assert machine.replayed[: len(committed)] == committed
        assert len(machine.replayed) <= len(committed) + 1
        assert machine.quorum.epoch > epoch
