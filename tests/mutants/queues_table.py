"""Planted bugs of queues: each breaks one promise of share groups, and each must be found by the tests of the engine, of the
share coordinator, or of the wire, or by a seed."""

from tests.mutants.table import Mutant

QUEUES_TESTS = (
    "tests/queues",
    "tests/broker/handlers/test_share_groups.py",
    "tests/broker/handlers/test_share_dead_letters.py",
    "tests/broker/handlers/test_queue_topics.py",
    "tests/broker/test_share_seeds.py",
)
ENGINE = "tidelog/queues/share_partition.py"
COORDINATOR = "tidelog/queues/share_coordinator.py"
LEADER = "tidelog/broker/share_partitions.py"
LETTERS = "tidelog/broker/share_dead_letters.py"
DELAYS = "tidelog/queues/delays.py"
RANGES = "tidelog/queues/offset_ranges.py"

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
        "shared: an acknowledgement that changes nothing waits for nobody",
        "an answered acknowledgement is final, whoever has settled the records",
        LEADER,
        "            self._writes.wait(on_written)\n",
        "            on_written(None)\n",
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
        "        self._set_due_timer(engine)\n        if wakes:\n            self._wake()\n",
        "        self._set_due_timer(engine)\n",
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
        "            self._start_when_written(SharePartition(start_offset, is_ordered_by_key=self._is_ordered_by_key()), ())\n",
        "            self._start(SharePartition(start_offset, is_ordered_by_key=self._is_ordered_by_key()))\n",
    ),
    Mutant(
        "shared: a topic gets its own dead letters",
        "a letter is not delivered as a record, to be rejected in turn",
        LETTERS,
        "        if name == burial.partition.topic:\n",
        "        if False:\n",
    ),
    Mutant(
        "shared: a rejection waits for a topic of letters that is missing",
        "nobody waits for what only an administrator can do",
        LETTERS,
        "(isinstance(error, _NoPlaceForLetters) or self._failures >= FAILURES_MAX)",
        "self._failures >= FAILURES_MAX",
    ),
    Mutant(
        "shared: a state outlives the records that it is about",
        "records that got the offsets of lost ones are delivered",
        LEADER,
        "        kept = state.within(end_offset)\n",
        "        kept = state\n",
    ),
    Mutant(
        "shared: a state that is about lost records is measured when they have successors",
        "records that got the offsets of lost ones are delivered",
        LEADER,
        "partition.in_sync.epoch_start_offset if is_inherited else",
        "partition.log.log_end_offset if is_inherited else",
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
    Mutant(
        "shared: a delayed message comes early",
        "a delayed message is never early",
        ENGINE,
        "    return RecordState.DELAYED if times.due_ms > wall_ms else None\n",
        "    return RecordState.DELAYED if times.due_ms > wall_ms + 1_000 else None\n",
    ),
    Mutant(
        "shared: a message that is due wakes nobody",
        "a delayed message is at most a second late",
        LEADER,
        "        is_woken = engine.wake_delayed(self._environment.clock.now_ms())\n",
        "        is_woken = engine.wake_delayed(self._environment.clock.now_ms()) and False\n",
    ),
    Mutant(
        "shared: a batch that is read again adds its delays again",
        "a delayed message takes at most 24 bytes",
        ENGINE,
        "            for each in times:\n",
        "            for each in batch.times:\n",
    ),
    Mutant(
        "shared: what is due in weeks is forgotten",
        "a delayed message is never lost",
        DELAYS,
        "            yield heapq.heappop(self._stretches)[1:]\n",
        "            heapq.heappop(self._stretches)\n",
    ),
    Mutant(
        "shared: an expired message is handed out",
        "a message is never handed out late",
        ENGINE,
        "    if may_expire and times.expires_ms and times.expires_ms <= wall_ms:\n",
        "    if may_expire and times.expires_ms and times.expires_ms < wall_ms - 1_000:\n",
    ),
    Mutant(
        "shared: a message that was received expires",
        "only what nobody has received expires",
        ENGINE,
        "    if may_expire and times.expires_ms and times.expires_ms <= wall_ms:\n",
        "    if times.expires_ms and times.expires_ms <= wall_ms:\n",
    ),
    Mutant(
        "shared: a full table takes more holes",
        "the state of a queue fits into one record",
        RANGES,
        "        while index > 0 and self._states[index - 1] not in FINAL_STATES:\n",
        "        while index > len(self):\n",
    ),
    Mutant(
        "shared: a key's records wait for nobody",
        "a key's messages go out one at a time",
        ENGINE,
        "            if keys.add(record):\n",
        "            if keys.add(record) and False:\n",
    ),
    Mutant(
        "shared: a settled record keeps its key",
        "a settled message gives its turn to the next of its key",
        ENGINE,
        "            self._freed += [offset for offset in freed if offset is not None]\n",
        "            self._freed += [offset for offset in freed if offset is not None and False]\n",
    ),
    Mutant(
        "shared: a new order of the group is not noticed",
        "the order of a group holds from the moment in which it is set",
        LEADER,
        "        if engine.is_ordered_by_key != self._is_ordered_by_key():\n",
        "        if False:\n",
    ),
    Mutant(
        "shared: a delivery is not written",
        "a message that kills the broker reaches its limit",
        ENGINE,
        "                self._note(row_first, row_last, RecordState.AVAILABLE, count)\n",
        "                pass\n",
    ),
    Mutant(
        "shared: a delivery is answered before it is written",
        "a delivery is counted before it happens",
        LEADER,
        "        is_counted = rules is not None and bool(fetched.acquired)\n",
        "        is_counted = False\n",
    ),
    Mutant(
        "shared: what has reached its limit before a crash is delivered once more",
        "a message that kills the broker reaches its limit",
        ENGINE,
        "            if limits.width_max is None and count >= limits.delivery_count_max:\n",
        "            if False:\n",
    ),
    Mutant(
        "shared: suspected poison is gathered with others",
        "a message that may be poison is delivered by itself",
        LEADER,
        "                if acquired[-1].delivery_count > limits.throttle_count or engine.is_next_suspect(limits):\n",
        "                if False:\n",
    ),
)
