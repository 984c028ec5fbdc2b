"""Leader epochs: Kafka's rules one by one, and against a log whose every offset knows its epoch."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.disk import SimulatedDisk
from tests.log.disks import DIRECTORY, read_file, simulated_disk, write_file
from tests.memory_size import bytes_each
from tidelog.log.errors import CorruptCheckpoint
from tidelog.log.leader_epochs import LeaderEpochs

PATH = f"{DIRECTORY}/leader-epoch-checkpoint"


def epochs_of(*entries: tuple[int, int], disk: SimulatedDisk | None = None) -> LeaderEpochs:
    epochs = LeaderEpochs(simulated_disk() if disk is None else disk, PATH)
    for entry in entries:
        epochs.assign(*entry)
    return epochs


def test_an_empty_one_knows_nothing() -> None:
    epochs = epochs_of()
    assert (epochs.latest_epoch, list(epochs.entries), epochs.dirty) == (-1, [], False)
    assert epochs.epoch_for_offset(0) == -1
    assert epochs.end_offset_for(-1, 100) == (-1, -1)
    assert epochs.end_offset_for(0, 100) == (-1, -1)


def test_assigning_what_is_known_changes_nothing() -> None:
    epochs = epochs_of((2, 10))
    flush(epochs)
    assert not epochs.assign(2, 10)
    assert not epochs.assign(2, 15)
    assert (list(epochs.entries), epochs.dirty) == ([(2, 10)], False)


def test_assigning_removes_what_it_contradicts() -> None:
    known = (2, 10), (3, 20), (5, 30)
    assert list(epochs_of(*known, (6, 40)).entries) == [(2, 10), (3, 20), (5, 30), (6, 40)]
    assert list(epochs_of(*known, (6, 30)).entries) == [(2, 10), (3, 20), (6, 30)]
    assert list(epochs_of(*known, (5, 25)).entries) == [(2, 10), (3, 20), (5, 25)]
    assert list(epochs_of(*known, (4, 40)).entries) == [(2, 10), (3, 20), (4, 40)]
    assert list(epochs_of(*known, (9, 0)).entries) == [(9, 0)]


@pytest.mark.parametrize("entry", [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(entry: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        epochs_of(entry)


def test_end_offset_as_offset_for_leader_epoch_answers() -> None:
    epochs = epochs_of((2, 10), (3, 20), (5, 30))
    assert epochs.end_offset_for(-1, 100) == (-1, -1)
    assert epochs.end_offset_for(0, 100) == (0, 10)
    assert epochs.end_offset_for(2, 100) == (2, 20)
    assert epochs.end_offset_for(3, 100) == (3, 30)
    assert epochs.end_offset_for(4, 100) == (3, 30)
    assert epochs.end_offset_for(5, 100) == (5, 100)
    assert epochs.end_offset_for(6, 100) == (-1, -1)
    # Leader epoch 8 has not appended anything yet, so that all epochs before it end where the log ends.
    answers = [epochs.end_offset_for(epoch, 100, leader_epoch=8) for epoch in (3, 4, 5, 6, 7, 8, 9)]
    assert answers == [(3, 30), (3, 30), (5, 100), (5, 100), (5, 100), (8, 100), (-1, -1)]


def test_truncating() -> None:
    known = (2, 10), (3, 20), (5, 30)
    for offset, expected in [(31, [(2, 10), (3, 20), (5, 30)]), (30, [(2, 10), (3, 20)]), (11, [(2, 10)]), (10, []), (0, [])]:
        epochs = epochs_of(*known)
        epochs.truncate_from_end(offset)
        assert list(epochs.entries) == expected
        assert epochs.latest_epoch == (expected[-1][0] if expected else -1)
    for offset, expected in [
        (9, [*known]),
        (10, [*known]),
        (15, [(2, 15), (3, 20), (5, 30)]),
        (20, [(3, 20), (5, 30)]),
        (99, [(5, 99)]),
    ]:
        epochs = epochs_of(*known)
        epochs.truncate_from_start(offset)
        assert list(epochs.entries) == expected


def flush(epochs: LeaderEpochs) -> None:
    staged = epochs.begin_flush()
    staged.stage().sync()
    staged.publish()


def test_only_a_change_makes_it_dirty() -> None:
    epochs = epochs_of((2, 10), (3, 20))
    flush(epochs)
    epochs.truncate_from_end(21)
    epochs.truncate_from_start(10)
    epochs.truncate_from_start(5)
    assert not epochs.dirty


@pytest.mark.parametrize(
    "change",
    [
        lambda epochs: epochs.assign(4, 30),
        lambda epochs: epochs.truncate_from_start(11),
        lambda epochs: epochs.truncate_from_end(20),
        lambda epochs: epochs.clear(),
    ],
)
def test_every_change_makes_it_dirty(change: Callable[[LeaderEpochs], None]) -> None:
    epochs = epochs_of((2, 10), (3, 20))
    flush(epochs)
    change(epochs)
    assert epochs.dirty


def test_clearing() -> None:
    epochs = epochs_of((2, 10), (3, 20))
    epochs.clear()
    assert (epochs.latest_epoch, list(epochs.entries)) == (-1, [])


def test_bytes_are_kafkas_and_durable() -> None:
    disk = simulated_disk()
    epochs = epochs_of((0, 0), (2, 15), (7, 2**63 - 1), disk=disk)
    flush(epochs)
    disk.sync_directory(PATH.rpartition("/")[0])
    assert read_file(disk, PATH) == epochs.to_bytes() == b"0\n3\n0 0\n2 15\n7 9223372036854775807\n"
    again = LeaderEpochs(disk.crash_image(keep="none"), PATH)
    again.load()
    assert (again.entries, again.latest_epoch, again.dirty) == (epochs.entries, 7, False)


def test_without_a_file_there_is_nothing() -> None:
    epochs = epochs_of((1, 1))
    epochs.load()
    assert (list(epochs.entries), epochs.latest_epoch, epochs.dirty) == ([], -1, False)


def test_a_flush_takes_what_there_was_when_it_began() -> None:
    disk = simulated_disk()
    epochs = epochs_of((1, 1), disk=disk)
    staged = epochs.begin_flush()
    epochs.assign(2, 5)
    staged.stage()
    staged.publish()
    assert read_file(disk, PATH) == b"0\n1\n1 1\n"
    assert epochs.dirty


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"0\n1\n1\n", "line 3: '1' is not of the form 'epoch start-offset'"),
        (b"0\n1\n-1 5\n", "line 3: epoch '-1'"),
        (b"0\n1\n1 x\n", "line 3: start offset 'x'"),
        (b"0\n2\n1 5\n1 6\n", "line 4: epoch 1 at 6 does not come after epoch 1 at 5"),
        (b"0\n2\n1 5\n2 5\n", "line 4: epoch 2 at 5 does not come after epoch 1 at 5"),
        (b"7\n", "line 1: version '7'"),
    ],
)
def test_a_damaged_file_names_the_line(data: bytes, problem: str) -> None:
    disk = simulated_disk()
    write_file(disk, PATH, data)
    with pytest.raises(CorruptCheckpoint) as caught:
        LeaderEpochs(disk, PATH).load()
    assert str(caught.value).startswith(f"{PATH}: {problem}")


def test_an_idle_one_costs_next_to_nothing() -> None:
    disk = simulated_disk()
    assert bytes_each(lambda number: LeaderEpochs(disk, f"/data/orders-{number}/leader-epoch-checkpoint")) < 300


class EpochLog:
    """The model: the epoch of every offset in a log, one by one."""

    def __init__(self) -> None:
        self.start = 0
        self.epochs: list[int] = []

    @property
    def end(self) -> int:
        return self.start + len(self.epochs)

    def epoch_at(self, offset: int) -> int:
        return self.epochs[offset - self.start]

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Where the history that a replica of ``epoch`` shares with this log ends."""
        if not self.epochs or epoch > self.epochs[-1]:
            return -1, -1
        if epoch < self.epochs[0]:
            return epoch, self.start
        shared = [known for known in self.epochs if known <= epoch]
        return shared[-1], self.start + len(shared)


log_steps = st.lists(
    st.tuples(st.sampled_from(["append", "bump", "cut end", "cut start", "reload"]), st.integers(0, 6)), max_size=25
)


@given(log_steps)
def test_against_a_log_whose_every_offset_knows_its_epoch(steps: list[tuple[str, int]]) -> None:
    epochs, log, epoch = epochs_of(), EpochLog(), 0
    for operation, number in steps:
        match operation:
            case "append":
                for _ in range(number):
                    epochs.assign(epoch, log.end)
                    log.epochs.append(epoch)
            case "bump":
                epoch += number
            case "cut end":
                del log.epochs[max(0, len(log.epochs) - number) :]
                epochs.truncate_from_end(log.end)
            case "cut start":
                kept = log.epochs[number:]
                # An empty log's next batch may be of the epoch that its start was last known to be in.
                if kept:
                    log.start, log.epochs = log.end - len(kept), kept
                    epochs.truncate_from_start(log.start)
            case "reload":
                flush(epochs)
                epochs.load()
        assert [epochs.epoch_for_offset(offset) for offset in range(log.start, log.end)] == log.epochs
        assert [epochs.end_offset_for(asked, log.end) for asked in range(epoch + 2)] == [
            log.end_offset_for(asked) for asked in range(epoch + 2)
        ]
