"""What was read becomes jobs: skipped, set aside until due, written behind a blocked key, or handed to its handler.

Runs in the polling thread only. Messages come in runs of one partition, and go on as runs: what is done per message is kept to
what order and offsets need.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.client.message import Message, Messages
from tidelog.deadletters.letter import Letter
from tidelog.worker.assigned import MESSAGE_BYTES, Assigned
from tidelog.worker.assignment import Assignment
from tidelog.worker.job import Job, Lane
from tidelog.worker.letters import foreign_letter
from tidelog.worker.metrics import Counts
from tidelog.worker.settlement import Settlement


class Intake:
    def __init__(self, assignment: Assignment, settlement: Settlement, counts: Counts, *, order: str, group: str) -> None:
        self._assignment = assignment
        self._settlement = settlement
        self._counts = counts
        self._order = order
        self._group = group

    def accept(self, raws: list[Any]) -> None:
        """Messages of confluent-kafka, without errors among them."""
        begin, count = 0, len(raws)
        while begin < count:
            topic, partition = raws[begin].topic(), raws[begin].partition()
            end = begin + 1
            while end < count and raws[end].partition() == partition and raws[end].topic() == topic:
                end += 1
            assigned = self._assignment.get(topic, partition)
            # One that was taken away in this very poll.
            if assigned is not None and not assigned.is_stopping:
                self._accept(assigned, raws[begin:end])
            begin = end

    def take_due(self, now_ms: int) -> None:
        """Letters whose time has come."""
        for assigned in self._assignment:
            if len(assigned.retries) and assigned.home.is_scanned and assigned.home.is_whole:
                due = assigned.retries.take_due(now_ms)
                if due:
                    self._retry(assigned, due)

    def next_due_ms(self) -> int | None:
        return min((due for assigned in self._assignment if (due := assigned.retries.due_ms) is not None), default=None)

    def _accept(self, assigned: Assigned, raws: list[Any]) -> None:
        offsets = [raw.offset() for raw in raws]
        messages = list(Messages(raws))
        assigned.backlog += len(raws)
        assigned.backlog_bytes += sum(map(len, raws)) + MESSAGE_BYTES * len(raws)
        tracked = assigned.offsets
        finished = [tracked.is_finished_before(offset) for offset in offsets] if tracked.has_restored else None
        tracked.begin(offsets)
        if finished is not None and any(finished):
            self._skip(assigned, [message for message, is_done in zip(messages, finished, strict=True) if is_done])
            messages = [message for message, is_done in zip(messages, finished, strict=True) if not is_done]
            offsets = [offset for offset, is_done in zip(offsets, finished, strict=True) if not is_done]
        if assigned.is_source:
            self._dispatch(assigned, messages, offsets)
        else:
            for message in messages:
                assigned.retries.add(message, self._letter_of(assigned, message))

    def _skip(self, assigned: Assigned, messages: Sequence[Message]) -> None:
        """Handled before, in another run or as another copy."""
        lane = Lane()
        self._counts.skipped += len(messages)
        self._settlement.finish(assigned, [Job(assigned, message, message.offset, lane) for message in messages])

    def _letter_of(self, assigned: Assigned, message: Message) -> Letter:
        letter = Letter.from_headers(message.headers_list)
        if letter is not None:
            return letter
        home = assigned.home
        return foreign_letter(home.source, home.partition, assigned.level, message.offset, message.timestamp, self._group)

    # -- to the handlers -----------------------------------------------------------------------------------------------------

    def _dispatch(self, assigned: Assigned, messages: Sequence[Message], offsets: Sequence[int]) -> None:
        if self._order == "key":
            self._dispatch_by_key(assigned, messages, offsets)
            return
        lane = assigned.lane
        assert lane is not None, "order by partition, or none, has a lane per partition"
        jobs = [Job(assigned, message, offset, lane) for message, offset in zip(messages, offsets, strict=True)]
        with assigned.route.execution.adding() as dispatch:
            dispatch.add(jobs)

    def _dispatch_by_key(self, assigned: Assigned, messages: Sequence[Message], offsets: Sequence[int]) -> None:
        home = assigned.home
        blocked = home.blocked
        is_any_blocked = bool(len(blocked))
        waiting: list[Message] = []
        jobs: list[Job] = []
        with assigned.route.execution.adding() as dispatch:
            lane_of = dispatch.lane_of
            for message, offset in zip(messages, offsets, strict=True):
                key = message[0]
                if key is None:
                    jobs.append(Job(assigned, message, offset, Lane()))
                elif is_any_blocked and (blocked.has(key, offset) or blocked.blocker(key, offset) is not None):
                    waiting.append(message)
                else:
                    jobs.append(Job(assigned, message, offset, lane_of((home, key))))
            dispatch.add(jobs)
        for message in waiting:
            self._wait(assigned, message, message.offset)

    def _wait(self, assigned: Assigned, message: Message, offset: int) -> None:
        key = message[0]
        assert key is not None
        blocked = assigned.home.blocked
        place = blocked.blocker(key, offset)
        if place is None or blocked.has(key, offset):
            # A run before this one wrote its letter and died before the commit: the letter is the one that counts.
            self._skip(assigned, [message])
        else:
            self._settlement.hold(Job(assigned, message, offset, Lane()), place)

    def _retry(self, assigned: Assigned, due: Sequence[tuple[Message, Letter]]) -> None:
        """Letters are few, so one by one."""
        for message, letter in due:
            job = Job(assigned, message, message.offset, assigned.lane or Lane(), letter)
            if self._order == "key" and message[0] is not None:
                self._retry_in_order(job, message[0])
            else:
                with assigned.route.execution.adding() as dispatch:
                    dispatch.add([job])

    def _retry_in_order(self, job: Job, key: bytes) -> None:
        assigned = job.assigned
        home = assigned.home
        home.blocked.remove(key, job.origin)
        if home.blocked.has(key, job.origin):
            # There is another copy behind it, from a run that died: the last one is handled.
            self._skip(assigned, [job.view])
            return
        place = home.blocked.blocker(key, job.origin)
        if place is not None:
            self._settlement.hold(job, place)
            return
        jobs = [job, *self._settlement.release(home, key)]
        with assigned.route.execution.adding() as dispatch:
            lane = dispatch.lane_of((home, key))
            for each in jobs:
                each.lane = lane
            dispatch.add(jobs)
