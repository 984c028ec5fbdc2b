"""A led partition: what is visible when, who is told, and what is refused."""

from collections.abc import Callable

import pytest

from tests.log.harness import START_MS, Store, batch
from tidelog.log.append_check import AppendOrigin, ValidatedBatch, validate_batch
from tidelog.log.errors import InvalidRecord, LogOffline
from tidelog.log.settings import LogSettings
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from tidelog.replication.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    UnknownLeaderEpoch,
)
from tidelog.replication.partition import AppendTracker, Partition

Told = list[Exception | None]


class Reader:
    """A fetch that waits; ``on_told`` may do something in the middle of being told."""

    def __init__(self, on_told: Callable[[], None] | None = None) -> None:
        self.told = 0
        self._on_told = on_told

    def on_data(self, partition: Partition) -> None:
        self.told += 1
        if self._on_told is not None:
            self._on_told()


def led(store: Store, *, isr: tuple[int, ...] = (1,), min_insync: int = 1, leader_epoch: int = 3) -> Partition:
    topic = TopicImage("orders", b"i" * 16)
    topic.partitions[0] = PartitionImage((1, 2, 3), isr, leader=1, leader_epoch=leader_epoch, partition_epoch=0)
    return Partition(topic, 0, store.create(), min_insync, AppendTracker())


def sync(store: Store) -> None:
    """Everything that was appended becomes durable, and the partition hears of it from its log."""
    store.directory.kick()
    store.scheduler.run_until(lambda: store.directory.commit.is_idle)


def test_records_are_visible_only_when_durable() -> None:
    store = Store()
    partition = led(store)
    partition.append(batch(), acks_all=True)
    partition.advance()
    assert partition.log.high_watermark == 0
    sync(store)
    assert partition.log.high_watermark == 1


def test_on_a_relaxed_topic_they_are_visible_when_written() -> None:
    partition = led(Store(LogSettings(flush_messages=1000)))
    partition.append(batch(2), acks_all=True)
    partition.advance()
    assert partition.log.high_watermark == 2
    assert partition.log.durable.offset == 0


def test_a_producer_is_told_once_its_own_records_are_below_the_high_watermark() -> None:
    store = Store()
    partition = led(store)
    first: Told = []
    second: Told = []
    partition.append(batch(2), acks_all=True)
    partition.wait_replicated(2, first.append)
    assert (first, second) == ([], [])
    sync(store)
    assert (first, second) == ([None], [])
    partition.append(batch(), acks_all=True)
    partition.wait_replicated(3, second.append)
    assert (first, second) == ([None], [])
    sync(store)
    assert (first, second) == ([None], [None])


def test_who_waits_for_what_is_visible_is_told_at_once() -> None:
    store = Store()
    partition = led(store)
    partition.append(batch(), acks_all=True)
    sync(store)
    told: Told = []
    partition.wait_replicated(1, told.append)
    assert told == [None]


def test_too_few_in_sync_refuses_acks_all_and_holds_the_high_watermark() -> None:
    store = Store()
    partition = led(store, isr=(1,), min_insync=2)
    with pytest.raises(NotEnoughReplicas, match=r"1 of 3 replicas in sync, min\.insync\.replicas is 2"):
        partition.append(batch(), acks_all=True)
    assert partition.log.log_end_offset == 0
    partition.append(batch(), acks_all=False)
    sync(store)
    assert partition.log.high_watermark == 0


def sent(partition: Partition, sequence: int) -> ValidatedBatch:
    """A batch of an idempotent producer, as Produce hands it over."""
    return validate_batch(memoryview(batch(producer_id=5, sequence=sequence)), partition.log.settings, START_MS)


def test_too_few_in_sync_do_not_refuse_what_is_in_the_log_already() -> None:
    """The client sends again what it had no answer to; to refuse it would say that it was not appended."""
    store = Store()
    partition = led(store, isr=(1, 2), min_insync=1)
    partition.append(sent(partition, 0), acks_all=True)
    sync(store)
    partition.note_follower_fetch(2, -1, 1, 0)
    partition.append(sent(partition, 1), acks_all=True)
    sync(store)
    assert partition.log.high_watermark == 1
    partition.change_min_insync_replicas(3)
    assert partition.append(sent(partition, 0), acks_all=True).first_offset == 0
    with pytest.raises(NotEnoughReplicasAfterAppend):
        partition.append(sent(partition, 1), acks_all=True)
    for sequence in (2, 7):
        with pytest.raises(NotEnoughReplicas):
            partition.append(sent(partition, sequence), acks_all=True)
    assert partition.log.log_end_offset == 2


def test_a_duplicate_is_told_with_the_batch_that_it_repeats() -> None:
    """It asks to wait after later batches."""
    store = Store()
    partition = led(store, isr=(1, 2))
    for sequence in range(3):
        partition.append(sent(partition, sequence), acks_all=True)
    sync(store)
    told: list[int] = []

    def wait(end_offset: int) -> None:
        partition.wait_replicated(end_offset, lambda _: told.append(end_offset))

    for end_offset in (2, 3, 1, 2):
        wait(end_offset)
    for offset, expected in ((1, [1]), (2, [1, 2, 2]), (3, [1, 2, 2, 3])):
        partition.note_follower_fetch(2, -1, offset, 0)
        assert told == expected


@pytest.mark.parametrize(("epoch", "error"), [(2, FencedLeaderEpoch), (4, UnknownLeaderEpoch)])
def test_a_client_with_another_epoch_is_refused(epoch: int, error: type[Exception]) -> None:
    partition = led(Store(), leader_epoch=3)
    partition.check_epoch(3)
    partition.check_epoch(-1)
    with pytest.raises(error, match=f"is in leader epoch 3, the request has epoch {epoch}"):
        partition.check_epoch(epoch)


def test_a_fetch_is_told_when_the_watermark_moves_and_not_otherwise() -> None:
    store = Store()
    partition = led(store)
    reader = Reader()
    partition.add_fetch_waiter(reader)
    partition.append(batch(), acks_all=False)
    partition.advance()
    assert reader.told == 0
    sync(store)
    partition.advance()
    assert reader.told == 1
    partition.remove_fetch_waiter(reader)
    partition.append(batch(), acks_all=False)
    sync(store)
    assert reader.told == 1


def test_a_fetch_may_leave_while_it_is_told() -> None:
    store = Store()
    partition = led(store)
    readers = [Reader() for _ in range(3)]

    def leave() -> None:
        for reader in (*readers, leaving):
            partition.remove_fetch_waiter(reader)

    leaving = Reader(leave)
    for reader in (leaving, *readers):
        partition.add_fetch_waiter(reader)
    partition.append(batch(), acks_all=False)
    sync(store)
    assert leaving.told == 1


def test_when_the_log_goes_offline_everybody_who_waits_hears_of_it() -> None:
    store = Store()
    partition = led(store)
    told: Told = []
    reader = Reader()
    partition.append(batch(), acks_all=True)
    partition.wait_replicated(1, told.append)
    partition.add_fetch_waiter(reader)
    partition.log.go_offline("told to")
    partition.advance()
    assert [type(error) for error in told] == [LogOffline]
    assert reader.told == 1


def test_a_partition_that_goes_away_tells_everybody() -> None:
    partition = led(Store())
    told: Told = []
    partition.append(batch(), acks_all=True)
    partition.wait_replicated(1, told.append)
    gone = RuntimeError("gone")
    partition.close(gone)
    partition.close(gone)
    assert told == [gone]


def test_a_closed_partition_no_longer_listens_to_its_log() -> None:
    store = Store()
    partition = led(store)
    partition.close(RuntimeError("gone"))
    partition.append(batch(), acks_all=True)
    sync(store)
    assert partition.log.high_watermark == 0
    assert partition.log.durability_listeners == ()


def test_appends_are_tracked_whoever_makes_them() -> None:
    partition, relaxed = led(Store()), led(Store(LogSettings(flush_messages=1000)))
    for each in (partition, relaxed):
        each.append(batch(2), acks_all=False, origin=AppendOrigin.COORDINATOR)
    appends = partition._appends
    assert (appends.unsynced_bytes, appends.last_log) == (len(batch(2)), partition.log)
    assert not appends.advance_relaxed()
    assert relaxed._appends.unsynced_bytes == 0
    assert relaxed._appends.advance_relaxed()
    assert relaxed.log.high_watermark == 2
    assert not relaxed._appends.advance_relaxed()


def test_a_partition_knows_its_topic() -> None:
    partition = led(Store())
    assert (partition.topic, partition.topic_id, partition.index, partition.is_internal) == ("orders", b"i" * 16, 0, False)


def test_a_partition_follows_the_metadata_and_its_settings() -> None:
    """What moves the high watermark without an append: fewer replicas, or a lower minimum."""
    for change in ("follow", "minimum"):
        store = Store()
        partition = led(store, isr=(1,), min_insync=2)
        partition.append(batch(), acks_all=False)
        sync(store)
        assert partition.log.high_watermark == 0
        if change == "follow":
            partition.follow(PartitionImage((1,), (1,), leader=1, leader_epoch=3, partition_epoch=1))
            assert (partition.in_sync.replicas, partition.in_sync.isr) == ((1,), (1,))
        else:
            partition.change_min_insync_replicas(1)
            assert partition.min_insync_replicas == 1
        assert partition.log.high_watermark == 1


def test_a_smaller_in_sync_set_counts_with_the_minimum_that_came_with_it() -> None:
    """The controller counts broker 2 as eligible, so the high watermark must not move on without it."""
    store = Store()
    partition = led(store, isr=(1, 2), min_insync=1)
    partition.append(batch(), acks_all=True)
    sync(store)
    partition.follow(PartitionImage((1, 2, 3), (1,), leader=1, leader_epoch=3, partition_epoch=1), 2)
    assert partition.log.high_watermark == 0
    assert partition.is_under_min_isr


def test_whoever_holds_a_closed_partition_gets_a_copy_of_the_reason() -> None:
    class Moved(Exception):
        def __init__(self, text: str, leader: int) -> None:
            super().__init__(text)
            self.leader = leader

    partition = led(Store())
    partition.check_open()
    reason = Moved("led elsewhere", 2)
    partition.close(reason)
    for ask in (partition.check_open, lambda: partition.check_epoch(3)):
        with pytest.raises(Moved, match="led elsewhere") as raised:
            ask()
        assert raised.value is not reason
        assert raised.value.leader == 2
    assert partition.closed_by is reason
    assert reason.__traceback__ is None


def test_bytes_of_clients_are_counted() -> None:
    partition = led(Store())
    assert (partition.produced_bytes, partition.fetched_bytes) == (0, 0)
    for _ in range(2):
        partition.append(batch(), acks_all=False)
        partition.count_fetched(10)
    partition.append(batch(), acks_all=False, origin=AppendOrigin.COORDINATOR)
    assert (partition.produced_bytes, partition.fetched_bytes) == (2 * len(batch()), 20)


def test_bytes_are_unsynced_until_the_second_pass_after_them() -> None:
    """The pass that was under way when they were written may not have covered them."""
    partition = led(Store())
    appends, size = partition._appends, len(batch())
    for unsynced in (size, 2 * size):
        partition.append(batch(), acks_all=False)
        assert appends.unsynced_bytes == unsynced
    appends.pass_ended()
    partition.append(batch(), acks_all=False)
    assert appends.unsynced_bytes == 3 * size
    appends.pass_ended()
    assert appends.unsynced_bytes == size
    appends.pass_ended()
    assert appends.unsynced_bytes == 0


def test_a_fetch_hears_which_partition_has_data_and_may_leave_twice() -> None:
    class NotesPartitions(Reader):
        def on_data(self, partition: Partition) -> None:
            super().on_data(partition)
            heard.append(partition)

    heard: list[Partition] = []
    store = Store()
    partition = led(store)
    reader = NotesPartitions()
    partition.remove_fetch_waiter(reader)
    partition.add_fetch_waiter(reader)
    partition.append(batch(), acks_all=False)
    sync(store)
    partition.close(RuntimeError("gone"))
    assert heard == [partition, partition]
    partition.remove_fetch_waiter(reader)
    partition.remove_fetch_waiter(reader)


def test_only_the_broker_may_append_control_batches() -> None:
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp=START_MS
    )
    partition = led(Store())
    with pytest.raises(InvalidRecord):
        partition.append(marker, acks_all=True)
    assert partition.append(marker, acks_all=True, origin=AppendOrigin.COORDINATOR).first_offset == 0
