"""Compaction against a plain model: whatever is written, in whatever order, between whatever cleanings."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.log.compaction import machine as machines
from tests.log.compaction.machine import DIRECTORY, RETENTION_MS, Machine, latest
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producers.producer_state import ProducerEntry
from tidelog.records.compression import CompressionType
from tidelog.records.record import Record

KEYS = [b"a", b"b", b"c", b"a key that is longer than its digest", b"another key that is longer than its digest"]
TRANSACTIONAL = (1, 2)
IDEMPOTENT = 3
PLAIN = -1

pairs = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([b"x", b"y" * 40, None])), min_size=1, max_size=4)
sends = st.tuples(
    st.just("send"), st.sampled_from([*TRANSACTIONAL, IDEMPOTENT, PLAIN, PLAIN]), pairs, st.sampled_from(CompressionType)
)
ends = st.tuples(st.just("end"), st.sampled_from(TRANSACTIONAL), st.booleans())
rolls = st.tuples(st.just("roll"))
cleanings = st.tuples(st.just("clean"))
pauses = st.tuples(st.just("pause"), st.sampled_from([RETENTION_MS // 3, RETENTION_MS]))
# Twice as many sends and rolls as the rest: most logs should have something to clean.
operations = st.lists(st.one_of(sends, sends, rolls, rolls, ends, cleanings, pauses), min_size=3, max_size=30)


@dataclass
class Model:
    """Every record ever written, and what became of it."""

    records: dict[int, Record] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    undecided: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    # Tombstone -> not before this time may it go.
    horizons_ms: dict[int, int] = field(default_factory=dict)

    def send(self, records: list[Record], producer_id: int) -> None:
        self.records.update((record.offset, record) for record in records)
        if producer_id in TRANSACTIONAL:
            offsets = [record.offset for record in records]
            self.open.setdefault(producer_id, []).extend(offsets)
            self.undecided.update(offsets)

    def end(self, producer_id: int, commit: bool) -> None:
        offsets = self.open.pop(producer_id, [])
        self.undecided.difference_update(offsets)
        if not commit:
            self.aborted.update(offsets)

    def committed(self) -> list[Record]:
        decided = [record for offset, record in sorted(self.records.items()) if offset not in self.undecided]
        return [record for record in decided if record.offset not in self.aborted]


def apply(machine: Machine, model: Model, operation: tuple[object, ...]) -> None:
    match operation:
        case ("send", int(producer_id), list(key_values), CompressionType() as compression):
            is_transactional = producer_id in TRANSACTIONAL
            model.send(machine.send(key_values, producer_id, is_transactional, compression), producer_id)
        case ("end", int(producer_id), bool(commit)):
            # A marker without data may be the first thing to go, and with it what the coordinator said last.
            if producer_id in model.open:
                machine.end_transaction(producer_id, commit)
                model.end(producer_id, commit)
        case ("roll",):
            machine.roll()
        case ("pause", int(duration_ms)):
            machine.pass_time(duration_ms)
        case ("clean",):
            machine.sync()
            clean_and_check(machine, model)


def clean_and_check(machine: Machine, model: Model) -> None:
    """Clean as often as it takes; the clock moves a little with each pass, so only what is clearly due must be gone."""
    before_ms = machine.clock.now_ms()
    end_offset = machine.log.log_end_offset
    producers = machine.log.producers.describe()
    cleanable_offset = min(machine.log.last_stable_offset, machine.log.segments.active.base_offset)
    first_dirty_offset = machine.cleaner.first_dirty_offset(machine.log)
    machine.clean()
    after_ms = machine.clock.now_ms()
    upper_offset = machine.cleaner.first_dirty_offset(machine.log) or 0
    assert upper_offset <= cleanable_offset
    assert first_dirty_offset is None or upper_offset >= first_dirty_offset
    assert machine.log.log_end_offset == end_offset
    assert machine.log.producers.describe() == producers

    check_records(machine, model, machine.log, upper_offset)
    check_tombstones(machine, model, upper_offset, before_ms, after_ms)
    check_reopened(machine, model, upper_offset)


def check_records(machine: Machine, model: Model, log: PartitionLog, upper_offset: int) -> None:
    found = machine.records(log)
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert all(model.records[record.offset] == record for record in found), "a record that was never written"
    assert latest(record for record in machine.committed(log) if record.offset not in model.undecided) == latest(
        model.committed()
    )

    newest = {record.key: record.offset for record in model.committed() if record.offset < upper_offset}
    for offset, record in model.records.items():
        if offset >= upper_offset:
            assert offset in offsets, "cleaned above what may be cleaned"
        elif record.value is not None:
            is_latest = newest.get(record.key) == offset and offset not in model.aborted
            assert (offset in offsets) == is_latest, (offset, record)
    ends = [segment.next_offset() for segment in log.segments.closed]
    assert ends == [segment.base_offset for segment in log.segments][1:], "two segments do not meet"
    for segment in log.segments:
        for index in (segment.offset_index, segment.time_index, segment.transaction_index):
            index.check()


def check_tombstones(machine: Machine, model: Model, upper_offset: int, before_ms: int, after_ms: int) -> None:
    offsets = {record.offset for record in machine.records()}
    newest = {record.key: record.offset for record in model.committed() if record.offset < upper_offset}
    for offset, record in model.records.items():
        if record.value is not None or offset >= upper_offset:
            continue
        if newest.get(record.key) != offset or offset in model.aborted:
            assert offset not in offsets
        elif offset not in model.horizons_ms:
            assert offset in offsets, "a tombstone went at once"
            model.horizons_ms[offset] = before_ms + RETENTION_MS
        elif after_ms < model.horizons_ms[offset]:
            assert offset in offsets, "a tombstone went too early"
        elif before_ms > model.horizons_ms[offset] + 10_000:
            assert offset not in offsets, "a tombstone stayed for good"


def check_reopened(machine: Machine, model: Model, upper_offset: int) -> None:
    """As recovery finds it, with the snapshots and without them."""
    image = machine.disk.crash_image(keep="all")
    log = machine.open(image)
    assert log.log_end_offset == machine.log.log_end_offset
    assert log.producers.describe() == machine.log.producers.describe()
    check_records(machine, model, log, upper_offset)

    image = machine.disk.crash_image(keep="all")
    for name in image.list_directory(DIRECTORY):
        if name.endswith((".snapshot", "index", ".timeindex")):
            image.remove(f"{DIRECTORY}/{name}")
    log = machine.open(image, recovery_point=0)
    assert log.log_end_offset == machine.log.log_end_offset
    check_records(machine, model, log, upper_offset)
    open_transactions = log.producers.describe()["open_transactions"]
    assert [producer_id for _, producer_id in open_transactions] == [  # type: ignore[attr-defined]  # a list of pairs
        entry.producer_id for entry in sorted_open(machine)
    ]
    for entry in machine.log.producers.entries():
        rebuilt = log.producers.entry(entry.producer_id)
        assert rebuilt is not None
        assert (rebuilt.epoch, rebuilt.last_sequence, rebuilt.last_offset) == (
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
        )


def sorted_open(machine: Machine) -> list[ProducerEntry]:
    entries = [entry for entry in machine.log.producers.entries() if entry.current_transaction_first_offset >= 0]
    return sorted(entries, key=lambda entry: entry.current_transaction_first_offset)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    operations,
    st.sampled_from([1, 176 * 3, 1 << 20]),
    st.sampled_from([1, 300, 1 << 20]),
)
def test_whatever_is_written_compaction_keeps_what_counts(
    steps: list[tuple[object, ...]], key_map_bytes_max: int, segment_bytes: int
) -> None:
    machine = Machine(machines.settings(segment_bytes=segment_bytes), key_map_bytes_max)
    model = Model()
    for step in steps:
        apply(machine, model, step)
    machine.roll()
    clean_and_check(machine, model)
    machine.pass_time(3 * RETENTION_MS)
    clean_and_check(machine, model)
    clean_and_check(machine, model)
