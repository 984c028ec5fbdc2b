"""A follower that copies from a leader: two machines with simulated disks, and the requests between them carried by hand."""

from dataclasses import dataclass, field

import pytest

from simulation.disk import Keep
from tests.log.harness import Store, batch
from tidelog.log.partition_log import PartitionLog
from tidelog.log.reading import LogSlice
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.replication.errors import FencedLeaderEpoch, UnknownLeaderEpoch
from tidelog.replication.fetcher import RETRY_MS, FetcherOptions, FetcherPorts, FollowedPartition, FollowerPhase, ReplicaFetcher
from tidelog.replication.partition import AppendTracker, Partition
from tidelog.replication.throttle import ReplicationThrottle
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchedPartition, FetchedTopic, FetchPartition, FetchRequest, FetchResponse

ID = b"0123456789abcdef"
LEADER, FOLLOWER = 1, 2


def state(epoch: int, isr: tuple[int, ...] = (LEADER, FOLLOWER), recovery: int = 0) -> PartitionImage:
    return PartitionImage((LEADER, FOLLOWER), isr, leader=LEADER, leader_epoch=epoch, leader_recovery_state=recovery)


def answer(
    partition: int = 0,
    error: ErrorCode = ErrorCode.NONE,
    *,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    records: bytes | None = None,
    diverging_epoch: tuple[int, int] | None = None,
) -> FetchedPartition:
    view = None if records is None else memoryview(records)
    return FetchedPartition(partition, error, high_watermark, -1, log_start_offset, None, view, None, diverging_epoch, -1)


def response(*partitions: FetchedPartition, error: ErrorCode = ErrorCode.NONE, session_id: int = 7) -> FetchResponse:
    topics = [FetchedTopic(None, ID, list(partitions))] if partitions else []
    return FetchResponse(topics, error, session_id, 0, [])


@dataclass
class Follower:
    store: Store = field(default_factory=Store)
    ready: int = 0
    offline: list[FollowedPartition] = field(default_factory=list)

    def __post_init__(self) -> None:
        directory = self.store.directory
        ports = FetcherPorts(
            clock=self.store.clock,
            report=lambda event, facts: self.store.events.append((event, facts)),
            wait_durable=directory.commit.wait,
            truncate=directory.truncate,
            start_over=directory.begin_again,
            raise_start=lambda log, offset: directory.delete_records(log, offset, lambda error: None),
            on_ready=self._count_ready,
            on_offline=self.offline.append,
        )
        self.fetcher = ReplicaFetcher(FetcherOptions(FOLLOWER), ports)

    def _count_ready(self) -> None:
        self.ready += 1

    def follow(self, epoch: int = 1, index: int = 0, **facts: object) -> FollowedPartition:
        log = self.store.directory.logs.get(("orders", index)) or self.store.create(partition=index, topic_id=ID)
        followed = FollowedPartition(ID, index, log, FOLLOWER, state(epoch, **facts))  # type: ignore[arg-type]  # its own names
        self.fetcher.add(followed)
        self.settle()
        return followed

    def settle(self) -> None:
        """Let everything end that is under way: a truncation and the sync after it take two commits."""
        for _ in range(3):
            self.store.directory.kick()
            self.store.scheduler.run_all()

    def poll(self) -> FetchRequest:
        request = self.fetcher.poll()
        assert request is not None
        return request

    @property
    def log(self) -> PartitionLog:
        return self.store.log()


class Leader:
    def __init__(self, epoch: int = 1, isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> None:
        self.store = Store()
        self.store.create(topic_id=ID)
        self.partition: Partition
        self.lead(epoch, isr)

    def lead(self, epoch: int, isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> None:
        topic = TopicImage("orders", ID)
        topic.partitions[0] = state(epoch, isr)
        self.partition = Partition(topic, 0, self.store.log(), 1, AppendTracker())

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.partition.append(batch(), acks_all=False)
        self.store.wait_durable(self.partition.log)

    def serve(self, request: FetchRequest, partition: int | None = None) -> FetchResponse:
        named = [each for topic in request.topics for each in topic.partitions]
        (wanted,) = [each for each in named if partition in (None, each.partition)]
        found = self.partition.read_as_follower((FOLLOWER, 20), wanted, 1 << 20)
        log = self.partition.log
        return response(
            answer(
                high_watermark=log.high_watermark,
                log_start_offset=log.log_start_offset,
                records=None if found.records is None else content(found.records),
                diverging_epoch=found.diverging_epoch,
            )
        )


def content(slice_: LogSlice) -> bytes:
    return bytes(slice_.file.read(slice_.position, slice_.length))


def copy_all(leader: Leader, follower: Follower) -> None:
    for _ in range(10):
        request = follower.poll()
        if not request.topics:
            follower.fetcher.take_response(response())
            return
        follower.fetcher.take_response(leader.serve(request))
        follower.settle()
    raise AssertionError("the follower does not come to rest")


def whole(log: PartitionLog) -> bytes:
    return b"".join(bytes(segment.file().read(0, segment.size)) for segment in log.segments)


def test_a_follower_has_the_same_bytes_and_the_leader_counts_what_is_durable() -> None:
    leader, follower = Leader(), Follower()
    leader.append(3)
    follower.follow()
    request = follower.poll()
    assert (request.replica_id, request.session_id, request.session_epoch) == (FOLLOWER, 0, 0)
    assert request.topics[0].partitions[0][1:5] == (0, 1 << 20, 1, -1)
    follower.fetcher.take_response(leader.serve(request))
    assert follower.fetcher.poll() is None, "not before it is durable"
    assert leader.partition.log.high_watermark == 0
    follower.settle()
    assert follower.ready
    request = follower.poll()
    assert request.topics[0].partitions[0][1:5] == (3, 1 << 20, 1, 1)
    leader.serve(request)
    assert leader.partition.log.high_watermark == 3
    assert whole(follower.log) == whole(leader.partition.log)


def test_on_a_relaxed_topic_nobody_waits_for_the_disk() -> None:
    leader, follower = Leader(), Follower()
    follower.store.settings = follower.store.settings.__class__(flush_messages=1_000)
    leader.append()
    follower.follow()
    follower.fetcher.take_response(leader.serve(follower.poll()))
    assert follower.poll().topics[0].partitions[0].fetch_offset == 1


def test_a_throttled_partition_leaves_the_session_until_its_time_comes_and_in_sync_nobody_waits() -> None:
    leader, follower = Leader(isr=(LEADER,)), Follower()
    leader.append(3)
    throttle = ReplicationThrottle(follower.store.clock)
    throttle.change_rate(100)
    followed = follower.follow(isr=(LEADER,))
    other = follower.follow(index=1, isr=(LEADER,))
    followed.change_throttle(throttle)
    request = follower.poll()
    assert [each.bytes_max for each in request.topics[0].partitions] == [100, 1 << 20]
    follower.fetcher.take_response(leader.serve(request, 0))
    follower.settle()
    assert throttle.throttled_bytes == follower.fetcher.fetched_bytes > 100
    request = follower.poll()
    assert (request.topics, [each.partitions for each in request.forgotten]) == ([], [[0]])
    follower.fetcher.take_response(response())
    deadline_ms = follower.fetcher.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms - follower.store.clock.monotonic_ms() == throttle.wait_ms() > 0
    assert other.throttle is None
    assert follower.poll().topics == [], "the other partition is asked for meanwhile"
    follower.fetcher.take_response(response())
    follower.store.scheduler.run_for(2_000_000)
    assert [(each.partition, each.fetch_offset) for each in follower.poll().topics[0].partitions] == [(0, 3)]
    follower.fetcher.take_response(response())
    throttle.record(10_000)
    followed.follow(FOLLOWER, state(1))
    leader.append()
    assert follower.poll().forgotten == [], "in sync, it is not throttled"


def test_a_leader_sends_a_throttled_follower_no_more_than_it_may_but_hears_its_offset() -> None:
    leader, follower = Leader(isr=(LEADER,)), Follower()
    leader.append(3)
    throttle = ReplicationThrottle(leader.store.clock)
    throttle.change_rate(100)
    leader.partition.change_throttle(throttle)
    follower.follow(isr=(LEADER,))
    wanted = follower.poll().topics[0].partitions[0]
    one = leader.partition.read_as_follower((FOLLOWER, 20), wanted, 1 << 20).records
    assert one is not None
    assert one.length == 100
    leader.partition.count_replicated(FOLLOWER, 1_000)
    assert leader.partition.read_as_follower((FOLLOWER, 20), wanted, 1 << 20).records is None
    assert leader.partition.in_sync.followers[0].fetch_offset == 0
    leader.partition.follow(state(1))
    everything = leader.partition.read_as_follower((FOLLOWER, 20), wanted, 1 << 20).records
    assert everything is not None
    assert everything.length == 3 * len(batch()), "a replica in sync is not throttled"
    leader.partition.count_replicated(FOLLOWER, 1_000)
    assert throttle.throttled_bytes == 1_000


def test_a_session_names_only_what_changed() -> None:
    leader, follower = Leader(), Follower()
    leader.append()
    follower.follow()
    follower.follow(index=1)
    request = follower.poll()
    assert [each.partition for each in request.topics[0].partitions] == [0, 1]
    assert follower.fetcher.poll() is None, "one at a time"
    read = leader.partition.read_as_follower((FOLLOWER, 20), request.topics[0].partitions[0], 1 << 20)
    assert read.records is not None
    records = content(read.records)
    follower.fetcher.take_response(response(answer(records=records, high_watermark=1), answer(1)))
    follower.settle()
    request = follower.poll()
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert [(each.partition, each.fetch_offset) for each in request.topics[0].partitions] == [(0, 1)]
    follower.fetcher.remove((ID, 1))
    follower.fetcher.take_response(response())
    request = follower.poll()
    assert (request.session_epoch, request.topics, request.forgotten[0].partitions) == (2, [], [1])
    # A lost session begins again with everything.
    follower.fetcher.take_response(response(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0))
    request = follower.poll()
    assert (request.session_id, request.session_epoch, request.topics[0].partitions[0].partition) == (0, 0, 0)
    follower.fetcher.request_failed()
    assert follower.fetcher.poll() is None
    follower.store.pass_time(RETRY_MS)
    assert follower.poll().session_epoch == 0


def diverged(follower_epoch: int = 1) -> tuple[Leader, Follower]:
    """Both have offset 0 of epoch 0. The follower has two more of epoch 1, the leader one more of epoch 2."""
    leader, follower = Leader(epoch=0), Follower()
    leader.append()
    follower.follow(epoch=0)
    copy_all(leader, follower)
    follower.log.append_as_leader(batch(), follower_epoch)
    follower.log.append_as_leader(batch(), follower_epoch)
    leader.lead(2)
    leader.append()
    return leader, follower


def test_a_follower_truncates_where_the_histories_differ_before_it_raises_its_high_watermark() -> None:
    leader, follower = diverged()
    follower.follow(epoch=2)
    request = follower.poll()
    assert request.topics[0].partitions[0][1:5] == (3, 1 << 20, 2, 1)
    told = leader.serve(request)
    assert told.topics[0].partitions[0].diverging_epoch == (0, 1)
    assert [follower_.fetch_offset for follower_ in leader.partition.in_sync.followers] == [-1], "what it has does not count"
    told = FetchResponse([FetchedTopic(None, ID, [told.topics[0].partitions[0]._replace(high_watermark=2)])], *told[1:])
    follower.fetcher.take_response(told)
    assert follower.log.high_watermark <= 1
    follower.settle()
    assert follower.log.log_end_offset == 1
    copy_all(leader, follower)
    assert whole(follower.log) == whole(leader.partition.log)
    assert leader.partition.log.high_watermark == 2


@pytest.mark.parametrize("keep", ["some", "none", "all"])
def test_truncation_survives_a_crash_and_goes_on(keep: Keep) -> None:
    leader, follower = diverged()
    follower.follow(epoch=2)
    follower.fetcher.take_response(leader.serve(follower.poll()))
    follower.settle()
    follower.store.crash(keep)
    again = Follower(follower.store)
    again.follow(epoch=2)
    copy_all(leader, again)
    assert whole(again.log) == whole(leader.partition.log)


@pytest.mark.parametrize(
    ("isr", "recovery", "is_offline"),
    [((LEADER, FOLLOWER), 0, True), ((LEADER,), 0, False), ((LEADER, FOLLOWER), 1, False)],
)
def test_committed_records_are_given_up_only_after_an_unclean_election(
    isr: tuple[int, ...], recovery: int, is_offline: bool
) -> None:
    _, follower = diverged()
    follower.log.advance_high_watermark(3)
    follower.follow(epoch=2, isr=isr, recovery=recovery)
    follower.poll()
    follower.fetcher.take_response(response(answer(diverging_epoch=(0, 1))))
    follower.settle()
    assert (follower.log.offline_reason is not None) == is_offline == bool(follower.offline)
    event = "truncation_refused" if is_offline else "committed_records_truncated"
    assert [facts["offset"] for facts in follower.store.facts(event)] == [1]
    assert is_offline or follower.log.log_end_offset == 1


def test_a_follower_far_behind_starts_over_where_the_leader_begins() -> None:
    leader, follower = Leader(), Follower()
    follower.follow()
    leader.append(3)
    leader.partition.log.raise_start(2)
    request = follower.poll()
    follower.fetcher.take_response(response(answer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=2)))
    follower.settle()
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (2, 2)
    request = follower.poll()
    assert request.topics[0].partitions[0][1:5] == (2, 1 << 20, 1, -1)
    follower.fetcher.take_response(leader.serve(request))
    follower.settle()
    assert follower.log.log_end_offset == 3


@pytest.mark.parametrize("keep", [None, "none", "all"])
def test_a_leaders_log_that_starts_within_a_batch_is_copied(keep: Keep | None) -> None:
    leader, follower = Leader(), Follower()
    leader.partition.append(batch(3), acks_all=False)
    leader.append()
    leader.partition.note_follower_fetch(FOLLOWER, 20, 4, 0)
    leader.store.directory.delete_records(leader.partition.log, 1, lambda error: None)
    follower.follow()
    follower.poll()
    follower.fetcher.take_response(response(answer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=1)))
    follower.settle()
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (1, 1)
    copy_all(leader, follower)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (1, 4)
    assert whole(follower.log) == whole(leader.partition.log)
    if keep is not None:
        follower.store.crash(keep)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (1, 4)


def test_records_of_an_epoch_that_nobody_has_led_are_copied_again() -> None:
    """A leader epoch is not covered by the checksum of its batch: a bit of it may flip unnoticed."""
    leader, follower = Leader(epoch=1), Follower()
    leader.append(2)
    log = follower.store.create(topic_id=ID)
    log.append_as_leader(batch(), 1)
    log.append_as_leader(batch(), 3)
    follower.follow()
    follower.poll()
    follower.fetcher.take_response(response(answer(error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0)))
    follower.settle()
    assert follower.log.log_end_offset == 1
    copy_all(leader, follower)
    assert whole(follower.log) == whole(leader.partition.log)


def test_the_leaders_log_start_is_taken_over() -> None:
    leader, follower = Leader(), Follower()
    leader.append(3)
    follower.follow()
    copy_all(leader, follower)
    follower.poll()
    follower.fetcher.take_response(response(answer(high_watermark=3, log_start_offset=2)))
    assert (follower.log.high_watermark, follower.log.log_start_offset) == (3, 2)


def test_an_error_delays_one_partition_and_not_the_others() -> None:
    follower = Follower()
    delayed, other = follower.follow(), follower.follow(index=1)
    follower.poll()
    follower.fetcher.take_response(response(answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), answer(1)))
    assert (delayed.phase, other.phase) == (FollowerPhase.DELAYED, FollowerPhase.FETCHING)
    request = follower.poll()
    assert (request.topics, request.forgotten[0].partitions) == ([], [0])
    follower.fetcher.take_response(response())
    assert follower.fetcher.next_deadline_ms() == follower.store.clock.monotonic_ms() + RETRY_MS
    follower.store.pass_time(RETRY_MS)
    assert [each.partition for each in follower.poll().topics[0].partitions] == [0]


def test_answers_for_an_earlier_epoch_are_ignored() -> None:
    leader, follower = Leader(), Follower()
    leader.append()
    follower.follow(epoch=1)
    late = leader.serve(follower.poll())
    follower.follow(epoch=2)
    follower.fetcher.take_response(late)
    assert follower.log.log_end_offset == 0
    request = follower.poll()
    assert [each.current_leader_epoch for each in request.topics[0].partitions] == [2]


def test_damaged_records_are_not_appended() -> None:
    leader, follower = Leader(), Follower()
    leader.append()
    followed = follower.follow()
    good = leader.serve(follower.poll()).topics[0].partitions[0].records
    assert good is not None
    damaged = bytearray(good)
    damaged[-1] ^= 1
    follower.fetcher.take_response(response(answer(records=bytes(damaged), high_watermark=1)))
    assert (follower.log.log_end_offset, follower.log.high_watermark, followed.phase) == (0, 0, FollowerPhase.DELAYED)


@pytest.mark.parametrize(("epoch", "error"), [(0, FencedLeaderEpoch), (2, UnknownLeaderEpoch)])
def test_a_leader_serves_fetches_of_its_own_epoch_only(epoch: int, error: type[Exception]) -> None:
    leader = Leader(epoch=1)
    with pytest.raises(error):
        leader.partition.read_as_follower((FOLLOWER, 20), FetchPartition(0, 0, 1 << 20, epoch), 1 << 20)
    assert [follower.fetch_offset for follower in leader.partition.in_sync.followers] == [-1]
