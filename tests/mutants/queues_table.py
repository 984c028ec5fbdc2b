"""Planted bugs of queues: each breaks one promise of share groups, and each must be found by the tests of the engine, of the
share coordinator, or of the wire."""

from tests.mutants.table import Mutant

QUEUES_TESTS = (
    "tests/queues",
    "tests/broker/handlers/test_share_groups.py",
    "tests/broker/handlers/test_share_dead_letters.py",
)
ENGINE = "tidelog/queues/share_partition.py"
COORDINATOR = "tidelog/queues/share_coordinator.py"
LEADER = "tidelog/broker/share_partitions.py"

QUEUES_MUTANTS = (
    Mutant(
        "shared: the count is lowered when a member goes",
        "a message that kills its worker still reaches its limit",
        ENGINE,
        "                held = True\n                self._release(index, limits)\n",
        "                held = True\n                ranges.set(index, RecordState.ACQUIRED, ranges.count(index) - 1)\n"
        "                self._release(index, limits)\n",
    ),
    Mutant(
        "shared: an acknowledgement is answered before it is committed",
        "an answered acknowledgement is final",
        LEADER,
        "            self._write(ShareStateWrite(self._state_epoch, leader_epoch, start_offset, count, batches), on_written)\n",
        "            self._write(ShareStateWrite(self._state_epoch, leader_epoch, start_offset, count, batches), None)\n"
        "            if on_written is not None:\n                on_written(None)\n",
    ),
    Mutant(
        "shared: anybody may settle a record",
        "a record is settled by the member that holds it",
        ENGINE,
        "if ranges.state(row) != RecordState.ACQUIRED or ranges.owner(row) != owner:",
        "if ranges.state(row) != RecordState.ACQUIRED:",
    ),
    Mutant(
        "shared: a parked fetch is not woken by a release",
        "whoever waits hears of what was released, expired, or has room again",
        LEADER,
        "        self._set_lock_timer(engine)\n        if wakes:\n            self._wake()\n",
        "        self._set_lock_timer(engine)\n",
    ),
    Mutant(
        "shared: the delivery limit is tested too late",
        "a record is not delivered more often than its limit",
        ENGINE,
        "        is_last = self._ranges.count(row) >= limits.delivery_count_max\n",
        "        is_last = self._ranges.count(row) > limits.delivery_count_max\n",
    ),
    Mutant(
        "shared: a renewed lock ends with its first deadline",
        "no record is under two live locks",
        ENGINE,
        "if ranges.state(row) == RecordState.ACQUIRED and ranges.deadline_ms(row) <= now_ms:",
        "if ranges.state(row) == RecordState.ACQUIRED:",
    ),
    Mutant(
        "shared: trailing final ranges fill the window after a reload",
        "what is settled does not use up the window",
        ENGINE,
        "        self._ranges.merge(range(len(self._ranges)))\n        self._advance_start()\n",
        "        self._ranges.merge(range(len(self._ranges)))\n",
    ),
    Mutant(
        "shared: where a group begins is not written",
        "a leader that follows skips nothing",
        LEADER,
        "            self._write(ShareStateWrite(self._state_epoch, self._partition.leader_epoch, start_offset, 0), None)\n",
        "            assert start_offset >= 0\n",
    ),
    Mutant(
        "shared: a reload forgets that the start has moved",
        "the start offset never falls",
        COORDINATOR,
        "            self.ranges.move_start(value.start_offset)\n",
        "            self.updates += 0\n",
    ),
    Mutant(
        "shared: a leader that was replaced may write",
        "only the newest leader of a partition changes its state",
        COORDINATOR,
        "        self.leader_epoch = max(self.leader_epoch, value.leader_epoch)\n",
        "        self.leader_epoch = min(self.leader_epoch, value.leader_epoch)\n",
    ),
    Mutant(
        "shared: a lost connection keeps its locks",
        "what a dead member held is free at once",
        "tidelog/broker/share_sessions.py",
        "        self.share_partitions.release_member(key.group_id, key.member_id, lambda: key.group_id in self._members_of)\n",
        "",
    ),
    Mutant(
        "shared: the prefix is deleted up to the newest snapshot",
        "every state can be read again from what is left of the log",
        COORDINATOR,
        "        return min((entry.snapshot_offset for entry in self._entries.values()), default=self._end_offset)\n",
        "        return max((entry.snapshot_offset for entry in self._entries.values()), default=self._end_offset)\n",
    ),
    Mutant(
        "shared: a late write takes back what is final",
        "an answered acknowledgement is final, whatever else is sent again",
        COORDINATOR,
        "        return self.ranges.state(row) in FINAL_STATES or batch.delivery_count < self.ranges.count(row)\n",
        "        return batch.delivery_count < self.ranges.count(row)\n",
    ),
    Mutant(
        "shared: an acknowledgement does not wait for a coordinator that is away",
        "the failover of the share coordinator loses no lock",
        "tidelog/broker/share_states.py",
        "        if is_passing and is_wanted and self._attempts < ATTEMPTS_MAX:\n",
        "        if False:\n",
    ),
    Mutant(
        "shared: a record is archived before its letter is durable",
        "a letter becomes durable first, and then its record is archived",
        ENGINE,
        "        self._ranges.set(row, RecordState.ARCHIVING, count)\n",
        "        self._settle(row, RecordState.ARCHIVED)\n",
    ),
    Mutant(
        "shared: a leader without members leaves its letters unfinished",
        "a message that kills its only worker is delivered no more often than its limit",
        LEADER,
        "        self._is_retiring = self._burials > 0\n",
        "        self._is_retiring = False\n",
    ),
)
