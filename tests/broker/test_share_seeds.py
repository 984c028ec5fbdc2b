"""A share group under faults, one run for each seed: members that crash, hold records for too long and send requests twice, a
broker that loses what it has not synced, at any point of an acknowledgement, and a share coordinator whose shards fail, or cannot
write for a while. Members lose their connection and go on over another one, and what they had sent over the first arrives later.

Always: no record is under two live locks; what was answered as accepted or rejected is never delivered again, and nobody else can
settle it; no delivery count exceeds the limit; the start offset never falls. In the end everything heals, and all
is settled.

Every other seed has a queue topic, where messages are delayed or expire and the wall clock jumps. Then no message is delivered
before it is due, or for the first time after it has expired; no crash forgets a delivery; in the end each is delivered or has
expired, and while nothing is wrong, one that is due comes within a second.

Every fourth seed has an order by key in addition: no two messages of one key are under live locks, and the first deliveries of a
key come in the order of its messages.
"""

from errno import ENOSPC
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.broker.handlers.share_client import GROUP, QUEUE, ShareMember, share_machine
from tests.broker.handlers.test_share_groups import begin_settling, described_offsets, wait_ready
from tests.broker.harness import FakeClient
from tidelog.log.errors import StorageError
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
SEEDS = range(1, 101)
HALF_AN_HOUR_MS = 1_800_000
# A message may come this much after it is due.
LATE_MS_MAX = 1_000
CHUNK = 10
ACTIONS = 25
LOCK_MS = 1_000
COUNT_MAX = 3
# A lock may end this much later than its time, never earlier.
WHEEL_MS = 200
HEALED_ROUNDS_MAX = 200
SETTINGS = {"share.coordinator.state.topic.num.partitions": "2", "share.coordinator.snapshot.update.records.per.snapshot": "5"}


class DelayedRequest(NamedTuple):
    """A request on its way over a connection that its member has left."""

    client: FakeClient
    api: ApiKey
    body: bytes


class SharedRun:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_queue = not seed % 2
        self.is_ordered = not seed % 4
        self.machine, self.client, self.topic_id = share_machine(
            settings=SETTINGS,
            topic_configs=QUEUE if self.is_queue else None,
            share_record_lock_duration_ms=str(LOCK_MS),
            share_delivery_count_limit=str(COUNT_MAX),
            tidelog_share_order="key" if self.is_ordered else "none",
        )
        self.keys: dict[int, bytes | None] = {}
        self.times: dict[int, tuple[int, int]] = {}
        """When a message is due, and when it expires, by the wall clock; 0 for one that does not."""
        self.received: set[int] = set()
        self.counts: dict[int, int] = {}
        """How often a message has been delivered: on a queue topic, no crash forgets it."""
        self.members: list[ShareMember] = []
        self.member_count = 0
        self.appended = 0
        self.start_offset = -1
        self.final: set[int] = set()
        """What was answered as accepted or rejected."""
        self.locks: dict[int, tuple[ShareMember, int]] = {}
        """Who holds a record, and until when at least."""
        self.delayed: list[DelayedRequest] = []
        self.faults = 0

    @property
    def now_ms(self) -> int:
        return self.machine.clock.monotonic_ms()

    def run(self) -> None:
        actions = (
            *[self.append, self.join, self.fetch, self.fetch, self.fetch, self.settle, self.settle, self.settle],
            *[self.repeat, self.wait, self.crash_member, self.crash_broker, self.fail_coordinator],
            *[self.reconnect, self.deliver, self.deliver, self.fail_writes],
        )
        if self.is_queue:
            actions = (*actions, self.schedule, self.schedule, self.jump)
        for _ in range(ACTIONS):
            self.random.choice(actions)()
            self.check_start()
        self.heal()

    # -- what members do -----------------------------------------------------------------------------------------------------

    def append(self) -> None:
        if self.is_ordered:
            self.send([(0, 0)] * self.random.randint(1, 6))
            return
        count = self.random.randint(1, 6)
        assert self.client.append(count=count).error is ErrorCode.NONE
        self.appended += count

    def schedule(self) -> None:
        """Messages of one batch: due at once, soon, or in half an hour, some of them with a time to live."""
        delays = (0, 200, 1_500, 4_000, HALF_AN_HOUR_MS)
        count = self.random.randint(1, 5)
        self.send([(self.random.choice(delays), self.random.choice((0, 0, 300, 5_000))) for _ in range(count)])

    def send(self, times: list[tuple[int, int]]) -> None:
        """Send one batch of messages with these delays and times to live; 0 for none."""
        now_ms = self.machine.clock.now_ms()
        records = []
        for offset, (delay_ms, ttl_ms) in enumerate(times, start=self.appended):
            due_ms = now_ms + delay_ms
            expires_ms = due_ms + ttl_ms if ttl_ms else 0
            headers = [("tidelog.due", str(due_ms).encode())] if delay_ms else []
            headers += [("tidelog.expires", str(expires_ms).encode())] if ttl_ms else []
            key = self.keys[offset] = self.random.choice((b"a", b"b", b"c" * 40, None))
            records.append(Record(offset - self.appended, now_ms, key, b"value", tuple(headers)))
            self.times[offset] = due_ms if delay_ms else 0, expires_ms
        compression = self.random.choice((CompressionType.NONE, CompressionType.LZ4))
        assert self.client.append(records=build_batch(records, compression=compression)).error is ErrorCode.NONE
        self.appended += len(records)

    def jump(self) -> None:
        self.machine.clock.jump(self.random.choice((-3_000, -100, 500, 2_000, HALF_AN_HOUR_MS)))
        self.faults += 1

    def check_times(self, offset: int, began_ms: int, count: int) -> None:
        due_ms, expires_ms = self.times.get(offset, (0, 0))
        assert due_ms <= self.machine.clock.now_ms(), f"offset {offset} is early"
        # A delivery may have been counted, and not answered, because its lock ended before it was written.
        is_alive = not expires_ms or began_ms < expires_ms or offset in self.received or count > 1
        assert is_alive, f"offset {offset} had expired when it was asked for"
        if self.is_ordered and self.keys[offset] is not None:
            others = [other for other, key in self.keys.items() if key == self.keys[offset] and other != offset]
            assert offset in self.received or not self.received & {other for other in others if other > offset}, "out of order"
            locked = [other for other in others if other in self.locks and self.locks[other][1] > self.now_ms]
            assert not locked, f"the offsets {offset} and {locked} have one key, and are locked at the same time"
        self.received.add(offset)

    def join(self) -> ShareMember:
        self.member_count += 1
        member = ShareMember(self.machine, f"member-{self.member_count}", self.topic_id)
        member.join()
        self.members.append(member)
        return member

    def any_member(self) -> ShareMember:
        return self.random.choice(self.members) if self.members else self.join()

    def fetch(self) -> None:
        self.fetch_as(self.any_member())

    def fetch_as(self, member: ShareMember) -> None:
        began_ms, began_wall_ms = self.now_ms, self.machine.clock.now_ms()
        for first, last, count in member.acquired(
            max_records=self.random.randint(1, 8), max_wait_ms=self.random.choice((0, 300))
        ):
            assert 1 <= count <= COUNT_MAX, f"offset {first} was delivered {count} times"
            for offset in range(first, last + 1):
                assert offset not in self.final, f"offset {offset} was settled, and is delivered again"
                self.check_times(offset, began_wall_ms, count)
                if self.is_queue:
                    assert count > self.counts.get(offset, 0), f"a delivery of offset {offset} was forgotten"
                    self.counts[offset] = count
                holder, until_ms = self.locks.get(offset, (member, 0))
                assert holder is member or until_ms <= self.now_ms, f"offset {offset} is under two locks"
                self.locks[offset] = member, began_ms + LOCK_MS

    def held_by(self, member: ShareMember) -> list[int]:
        return [offset for offset, (holder, _) in self.locks.items() if holder is member]

    def settle(self) -> None:
        member = self.any_member()
        held = self.held_by(member)
        if not held:
            return
        offset, kind = self.random.choice(held), self.random.choice((ACCEPT, ACCEPT, RELEASE, REJECT))
        code = member.settle(offset, offset, kind)
        _, until_ms = self.locks.pop(offset)
        if code == ErrorCode.NONE:
            assert offset not in self.final, f"offset {offset} is settled twice"
            if kind != RELEASE:
                self.final.add(offset)
        else:
            assert code == ErrorCode.INVALID_RECORD_STATE, ErrorCode(code)
            assert until_ms <= self.now_ms, f"the lock of offset {offset} has not ended"

    def repeat(self) -> None:
        """A request that comes twice is refused the second time, whatever it says."""
        member = self.any_member()
        held = self.held_by(member)
        if not held or not member.epoch:
            return
        before = member.epoch
        member.acquired(max_records=0)
        twice = member.acknowledge((0, held[0], held[0], [ACCEPT]), share_session_epoch=before)
        assert twice.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        self.faults += 1

    def wait(self) -> None:
        self.machine.run_for(self.random.choice((50, 400, LOCK_MS + WHEEL_MS)))

    def reconnect(self) -> None:
        """The member's last request is still on its way when it has another connection, and goes on over that one."""
        member = self.any_member()
        if not member.epoch:
            return
        held = self.held_by(member)
        if held and self.random.random() < 0.7:
            offset, kind = self.random.choice(held), self.random.choice((ACCEPT, RELEASE, REJECT))
            fields: dict[str, Any] = {
                "group_id": GROUP,
                "member_id": member.name,
                "topics": member.topics([(0, offset, offset, [kind])]),
            }
            fields["share_session_epoch"] = self.random.choice((1, member.epoch))
            fields["is_renew_ack"] = False
            api = ApiKey.SHARE_ACKNOWLEDGE
        else:
            fields = member.fetch_fields(share_session_epoch=self.random.choice((-1, 1, member.epoch)))
            api = ApiKey.SHARE_FETCH
        self.delayed.append(DelayedRequest(member.client, api, encode_request(api, 2, fields)))
        member.client, member.epoch = self.machine.client(), 0
        self.fetch_as(member)
        self.faults += 1

    def deliver(self) -> None:
        """What arrives late has no effect: the member has not heard of it, and counts on what it holds."""
        if not self.delayed:
            return
        client, api, body = self.delayed.pop(self.random.randrange(len(self.delayed)))
        before = len(client.replies)
        correlation_id = client.send(api, 2, body)
        self.machine.run_until(lambda: len(client.replies) > before)
        frame, position = client.last_reply(api, 2, correlation_id)
        code = decode_response(api, 2, frame, position).error_code
        assert code in (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH), ErrorCode(code)
        if self.random.random() < 0.5:
            client.session.closed()

    # -- faults --------------------------------------------------------------------------------------------------------------

    def crash_member(self) -> None:
        if self.members:
            member = self.members.pop(self.random.randrange(len(self.members)))
            for offset in self.held_by(member):
                del self.locks[offset]
            member.client.session.closed()
            self.faults += 1

    def crash_broker(self) -> None:
        """Perhaps in the middle of an acknowledgement, and of another member's for the same record."""
        held = sorted(offset for offset, (_, until_ms) in self.locks.items() if until_ms > self.now_ms)
        if held:
            # What is settled first moves the start offset, and then anybody may acknowledge it.
            offset = self.random.choice((held[0], *held))
            member, _ = self.locks[offset]
            others = [each for each in self.members if each is not member and each.epoch]
            settling = [member, *self.random.sample(others, min(1, len(others)))]
            codes = [begin_settling(each, offset, offset, ACCEPT) for each in settling]
            for _ in range(self.random.randint(0, 12)):
                self.machine.broker.end_of_burst()
                self.machine.scheduler.step()
            # Without an answer it may be settled or not.
            if any(code() == ErrorCode.NONE for code in codes):
                self.final.add(offset)
        self.machine.crash(self.random.choice(("none", "all")))
        wait_ready(self.machine)
        self.client = self.machine.client()
        self.members, self.locks, self.delayed = [], {}, []
        self.faults += 1

    def fail_coordinator(self) -> None:
        service = self.machine.broker.coordinators.share_states.service
        for shard in list(service.runtime):
            if shard.machine is not None and self.random.random() < 0.5:
                shard.drop(StorageError("the disk failed"))
                self.faults += 1

    def fail_writes(self) -> None:
        # Who waits longer than 15 s is told that it failed, so there are never more.
        times = self.random.randint(1, 3)
        self.machine.disk.faults.clear()
        self.machine.disk.faults.fail("write", lambda path: "__share_group_state" in path, ENOSPC, times=times)
        self.faults += 1

    # -- what holds always, and in the end -----------------------------------------------------------------------------------

    def check_start(self) -> int:
        described = described_offsets(self.machine)
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return -1
        assert described.error_code == ErrorCode.NONE, ErrorCode(described.error_code)
        starts = [partition.start_offset for topic in described.topics for partition in topic.partitions]
        start = max(starts, default=-1)
        assert start >= self.start_offset, f"the start offset fell from {self.start_offset} to {start}"
        self.start_offset = start
        return int(start)

    def heal(self) -> None:
        self.append()
        self.join()
        self.machine.disk.faults.clear()
        self.machine.clock.jump(2 * HALF_AN_HOUR_MS)
        for _ in range(HEALED_ROUNDS_MAX):
            if self.check_start() == self.appended:
                self.check_nothing_lost()
                if self.is_queue:
                    self.check_punctuality()
                return
            self.fetch()
            while self.locks:
                self.settle_all()
            self.machine.run_for(LOCK_MS // 4)
        raise AssertionError(f"the group stays at {self.start_offset} of {self.appended}")

    def check_nothing_lost(self) -> None:
        lost = [offset for offset, (_, expires_ms) in self.times.items() if not expires_ms and offset not in self.received]
        assert not lost, f"the offsets {lost} were never delivered"

    def check_punctuality(self) -> None:
        due_ms = self.machine.clock.now_ms() + 700
        record = Record(0, due_ms, None, b"value", (("tidelog.due", str(due_ms).encode()),))
        assert self.client.append(records=build_batch([record])).error is ErrorCode.NONE
        while not self.any_member().acquired(max_wait_ms=300):
            assert self.machine.clock.now_ms() <= due_ms + LATE_MS_MAX, "a message is late"
        assert due_ms <= self.machine.clock.now_ms() <= due_ms + LATE_MS_MAX

    def settle_all(self) -> None:
        offset, (member, _) = next(iter(self.locks.items()))
        if member.settle(offset, offset, ACCEPT) == ErrorCode.NONE:
            assert offset not in self.final, f"offset {offset} is settled twice"
            self.final.add(offset)
        del self.locks[offset]


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_seeds(first: int) -> None:
    faults = 0
    for seed in range(first, first + CHUNK):
        run = SharedRun(seed)
        try:
            run.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert run.machine.facts("unexpected_error") == [], f"seed {seed}"
        faults += run.faults
    assert faults >= CHUNK
