"""The first stage: messages that were read are skipped, kept until they are due, held behind a blocked key, or dispatched.

It runs in the polling thread only. Messages arrive in runs of one partition, and are passed on as runs: the work per message is
limited to what order and offsets need.
"""

from collections.abc import Iterable, Sequence

from tidelog.client.message import Message, MessageRun
from tidelog.deadletters.letter import Letter
from tidelog.worker.dispatch import Lane
from tidelog.worker.partitions import AssignedPartition, AssignedPartitions, WaitingLetter, WorkItem
from tidelog.worker.settlement import Settlement


class Intake:
    def __init__(self, partitions: AssignedPartitions, settlement: Settlement, *, order: str, group: str) -> None:
        self._partitions = partitions
        self._settlement = settlement
        self._order = order
        self._group = group

    def accept(self, runs: Iterable[MessageRun]) -> None:
        for run in runs:
            assigned = self._partitions.get(run.partition)
            # The partition may have been taken away within this very poll.
            if assigned is not None and not assigned.is_stopping:
                self._accept(assigned, run)

    def take_due(self, now_ms: int) -> None:
        """Dispatch the letters that are due."""
        for assigned in self._partitions:
            if len(assigned.retries) and assigned.family.may_begin:
                due = assigned.retries.take_due(now_ms)
                if due:
                    self._retry(assigned, due)

    def next_due_ms(self) -> int | None:
        return min((due for assigned in self._partitions if (due := assigned.retries.due_ms) is not None), default=None)

    def _accept(self, assigned: AssignedPartition, run: MessageRun) -> None:
        offsets, messages, tracked = run.offsets, run.messages, assigned.offsets
        finished = [tracked.was_finished(offset) for offset in offsets] if tracked.has_restored else None
        assigned.begin(run)
        if finished is not None and any(finished):
            self._skip(assigned, [message for message, is_done in zip(messages, finished, strict=True) if is_done])
            messages = [message for message, is_done in zip(messages, finished, strict=True) if not is_done]
            offsets = [offset for offset, is_done in zip(offsets, finished, strict=True) if not is_done]
        if assigned.is_source:
            self._dispatch(assigned, messages, offsets)
        else:
            for message in messages:
                assigned.retries.add(message, self._letter_of(assigned, message))

    def _skip(self, assigned: AssignedPartition, messages: Sequence[Message]) -> None:
        """Skip messages that were handled before, in another run or as another copy."""
        lane = Lane()
        self._settlement.skip([WorkItem(assigned, message, message.offset, lane) for message in messages])

    def _letter_of(self, assigned: AssignedPartition, message: Message) -> Letter:
        letter = Letter.from_headers(message.headers_list)
        if letter is not None:
            return letter
        # Somebody put the message into the retry topic by hand. It is due now.
        return Letter(
            topic=assigned.family.source,
            partition=assigned.family.partition,
            offset=message.offset,
            timestamp_ms=message.timestamp,
            group=self._group,
            attempts=0,
            first_failure_ms=0,
            last_failure_ms=0,
            exception_class="",
            level=assigned.level,
            due_ms=0,
        )

    # -- to the handlers -----------------------------------------------------------------------------------------------------

    def _dispatch(self, assigned: AssignedPartition, messages: Sequence[Message], offsets: Sequence[int]) -> None:
        if self._order == "key":
            self._dispatch_by_key(assigned, messages, offsets)
            return
        lane = assigned.lane
        assert lane is not None, "only with order by key a partition has no lane of its own"
        items = [WorkItem(assigned, message, offset, lane) for message, offset in zip(messages, offsets, strict=True)]
        with assigned.execution.adding() as dispatch:
            dispatch.add(items)

    def _dispatch_by_key(self, assigned: AssignedPartition, messages: Sequence[Message], offsets: Sequence[int]) -> None:
        family = assigned.family
        blocked = family.blocked
        is_any_blocked = bool(len(blocked))
        waiting: list[tuple[Message, bytes]] = []
        items: list[WorkItem] = []
        with assigned.execution.adding() as dispatch:
            lane_of = dispatch.lane_of
            for message, offset in zip(messages, offsets, strict=True):
                key = message.key
                if key is None:
                    items.append(WorkItem(assigned, message, offset, Lane(None, family.share)))
                elif is_any_blocked and (blocked.has(key, offset) or blocked.blocker(key, offset) is not None):
                    waiting.append((message, key))
                else:
                    items.append(WorkItem(assigned, message, offset, lane_of((family, key), family.share)))
            dispatch.add(items)
        for message, key in waiting:
            self._hold(assigned, message, key)

    def _hold(self, assigned: AssignedPartition, message: Message, key: bytes) -> None:
        offset, blocked = message.offset, assigned.family.blocked
        blocker = blocked.blocker(key, offset)
        if blocker is None or blocked.has(key, offset):
            # An earlier worker wrote its letter and died before the commit, so the letter counts.
            self._skip(assigned, [message])
        else:
            self._settlement.hold(WorkItem(assigned, message, offset, Lane()), blocker)

    def _retry(self, assigned: AssignedPartition, due: Sequence[WaitingLetter]) -> None:
        """Dispatch letters one by one, because they are few."""
        for message, letter in due:
            item = WorkItem(assigned, message, message.offset, assigned.lane or Lane(None, assigned.family.share), letter)
            key = message.key
            if self._order == "key" and key is not None:
                self._retry_in_order(item, key)
            else:
                with assigned.execution.adding() as dispatch:
                    dispatch.add([item])

    def _retry_in_order(self, item: WorkItem, key: bytes) -> None:
        assigned = item.assigned
        family = assigned.family
        family.blocked.remove(key, item.source_offset)
        if family.blocked.has(key, item.source_offset):
            # There is another copy after it, from a worker that died: the last copy is handled.
            self._skip(assigned, [item.message])
            return
        blocker = family.blocked.blocker(key, item.source_offset)
        if blocker is not None:
            self._settlement.hold(item, blocker)
            return
        items = [item, *self._settlement.release(family, key)]
        with assigned.execution.adding() as dispatch:
            lane = dispatch.lane_of((family, key), family.share)
            for each in items:
                each.move_to(lane)
            dispatch.add(items)
