"""A share group under faults, one run for each seed: members that crash, hold records for too long and send requests twice, a
broker that loses what it has not synced, at any point of an acknowledgement, and a share coordinator whose shards fail.

Always: no record is under two live locks; what was answered as accepted or rejected is never delivered again, and nobody else can
settle it; no delivery count exceeds the limit; the start offset never falls. In the end everything heals, and all
is settled.
"""

from random import Random

import pytest

from tests.broker.handlers.share_client import GROUP, ShareMember, share_machine
from tests.broker.handlers.test_share_groups import described_offsets, wait_ready
from tidelog.log.errors import StorageError
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
SEEDS = range(1, 101)
CHUNK = 10
ACTIONS = 25
LOCK_MS = 1_000
COUNT_MAX = 3
# A lock may end this much later than its time, never earlier.
WHEEL_MS = 200
HEALED_ROUNDS_MAX = 60
SETTINGS = {"share.coordinator.state.topic.num.partitions": "2", "share.coordinator.snapshot.update.records.per.snapshot": "5"}


class SharedRun:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.machine, self.client, self.topic_id = share_machine(
            settings=SETTINGS, share_record_lock_duration_ms=str(LOCK_MS), share_delivery_count_limit=str(COUNT_MAX)
        )
        self.members: list[ShareMember] = []
        self.member_count = 0
        self.appended = 0
        self.start_offset = -1
        self.final: set[int] = set()
        """What was answered as accepted or rejected."""
        self.locks: dict[int, tuple[ShareMember, int]] = {}
        """Who holds a record, and until when at least."""
        self.faults = 0

    @property
    def now_ms(self) -> int:
        return self.machine.clock.monotonic_ms()

    def run(self) -> None:
        actions = (
            *[self.append, self.join, self.fetch, self.fetch, self.fetch, self.settle, self.settle, self.settle],
            *[self.repeat, self.wait, self.crash_member, self.crash_broker, self.fail_coordinator],
        )
        for _ in range(ACTIONS):
            self.random.choice(actions)()
            self.check_start()
        self.heal()

    # -- what members do -----------------------------------------------------------------------------------------------------

    def append(self) -> None:
        count = self.random.randint(1, 6)
        assert self.client.append(count=count).error is ErrorCode.NONE
        self.appended += count

    def join(self) -> ShareMember:
        self.member_count += 1
        member = ShareMember(self.machine, f"member-{self.member_count}", self.topic_id)
        member.join()
        self.members.append(member)
        return member

    def any_member(self) -> ShareMember:
        return self.random.choice(self.members) if self.members else self.join()

    def fetch(self) -> None:
        member = self.any_member()
        began_ms = self.now_ms
        for first, last, count in member.acquired(
            max_records=self.random.randint(1, 8), max_wait_ms=self.random.choice((0, 300))
        ):
            assert 1 <= count <= COUNT_MAX, f"offset {first} was delivered {count} times"
            for offset in range(first, last + 1):
                assert offset not in self.final, f"offset {offset} was settled, and is delivered again"
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

    # -- faults --------------------------------------------------------------------------------------------------------------

    def crash_member(self) -> None:
        if self.members:
            member = self.members.pop(self.random.randrange(len(self.members)))
            for offset in self.held_by(member):
                del self.locks[offset]
            member.client.session.closed()
            self.faults += 1

    def crash_broker(self) -> None:
        """Perhaps in the middle of an acknowledgement."""
        member = self.any_member()
        held = [offset for offset in self.held_by(member) if self.locks[offset][1] > self.now_ms]
        if held:
            offset = self.random.choice(held)
            topics = member.topics([(0, offset, offset, [ACCEPT])])
            fields = {"group_id": GROUP, "member_id": member.name, "share_session_epoch": member.epoch, "topics": topics}
            before = len(member.client.replies)
            member.client.send(ApiKey.SHARE_ACKNOWLEDGE, 1, encode_request(ApiKey.SHARE_ACKNOWLEDGE, 1, fields))
            for _ in range(self.random.randint(0, 12)):
                self.machine.broker.end_of_burst()
                self.machine.scheduler.step()
            # Without an answer it may be settled or not.
            if len(member.client.replies) > before:
                self.final.add(offset)
        self.machine.crash(self.random.choice(("none", "all")))
        wait_ready(self.machine)
        self.client = self.machine.client()
        self.members, self.locks = [], {}
        self.faults += 1

    def fail_coordinator(self) -> None:
        service = self.machine.broker.coordinators.share_states.service
        for shard in list(service.runtime):
            if shard.machine is not None and self.random.random() < 0.5:
                shard.drop(StorageError("the disk failed"))
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
        for _ in range(HEALED_ROUNDS_MAX):
            if self.check_start() == self.appended:
                return
            self.fetch()
            while self.locks:
                self.settle_all()
            self.machine.run_for(LOCK_MS // 4)
        raise AssertionError(f"the group stays at {self.start_offset} of {self.appended}")

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
