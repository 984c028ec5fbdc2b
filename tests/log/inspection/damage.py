"""A partition with a bit of everything, and ways to damage it."""

from collections.abc import Callable

from simulation.disk import SimulatedDisk
from tests.log.disks import read_file, write_file
from tests.log.harness import PATH, START_MS, Store, append, batch, end_transaction
from tidelog.log.inspection.directory_facts import DirectoryTarget, Finding, Severity, read_directory_facts, recognise
from tidelog.log.inspection.verification import PartitionSummary, verify_partition
from tidelog.log.settings import LogSettings
from tidelog.records.control import ControlType

ORDERS = f"{PATH}/orders-0"
SETTINGS = LogSettings(segment_bytes=700, index_interval_bytes=150)
# ``filled_store`` has offsets below this.
END_OFFSET = 29


def filled_store() -> Store:
    """Several segments, two leader epochs, a committed and two aborted transactions; all of it durable, the broker running."""
    store = Store(SETTINGS)
    log = store.create()
    for number in range(8):
        append(log)
        store.pass_time(7)
        if number in (2, 5):
            log.append_as_leader(transactional(store, 7, number // 5 * 2), 0)
            append(log)
            log.append_as_leader(transactional(store, 8, number // 5 * 2), 0)
            end_transaction(log, 7, ControlType.ABORT)
            end_transaction(log, 8, ControlType.COMMIT if number == 2 else ControlType.ABORT)
    for _ in range(7):
        append(log, leader_epoch=3)
        store.pass_time(7)
    assert log.log_end_offset == END_OFFSET, log.log_end_offset
    assert len(log.segments) >= 4
    store.commit()
    # So that the durable mark is on the disk too.
    store.settle(2000)
    return store


def transactional(store: Store, producer_id: int, sequence: int) -> bytes:
    stamps = [store.clock.now_ms(), START_MS]
    return batch(2, timestamps=stamps, producer_id=producer_id, sequence=sequence, transactional=True)


def stopped_store() -> Store:
    store = filled_store()
    store.close()
    return store


def crashed_store() -> Store:
    """All is durable, the recovery point is far back, and the next start checks the log."""
    store = filled_store()
    store.lose_power()
    return store


def log_files(disk: SimulatedDisk, directory: str = ORDERS) -> list[str]:
    return [f"{directory}/{name}" for name in disk.list_directory(directory) if name.endswith(".log")]


def change(disk: SimulatedDisk, path: str, edit: Callable[[bytearray], object]) -> None:
    content = bytearray(read_file(disk, path))
    edit(content)
    write_file(disk, path, bytes(content))
    disk.open(path, "write").sync()


def flip(disk: SimulatedDisk, path: str, position: int, bit: int = 0) -> None:
    def edit(content: bytearray) -> None:
        content[position] ^= 1 << bit

    change(disk, path, edit)


def truncate(disk: SimulatedDisk, path: str, size: int) -> None:
    file = disk.open(path, "write")
    file.truncate(size)
    file.sync()


def remove(disk: SimulatedDisk, path: str) -> None:
    disk.remove(path)
    disk.sync_directory(path.rpartition("/")[0])


def verify(disk: SimulatedDisk) -> tuple[list[Finding], list[PartitionSummary]]:
    """The whole data directory, as the command does it."""
    target = recognise(disk, PATH)
    assert isinstance(target, DirectoryTarget)
    facts = read_directory_facts(disk, PATH)
    findings = list(facts.problems)
    summaries = [
        verify_partition(disk, partition.path, facts.of_partition(disk, partition.name), findings.append, lambda count: None)
        for partition in target.partitions
    ]
    return findings, summaries


def damages(disk: SimulatedDisk) -> list[Finding]:
    return [finding for finding in verify(disk)[0] if finding.severity is Severity.DAMAGE]


def notes(disk: SimulatedDisk) -> list[Finding]:
    return [finding for finding in verify(disk)[0] if finding.severity is Severity.NOTE]
