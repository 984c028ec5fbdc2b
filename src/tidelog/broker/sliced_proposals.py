"""Decisions on their way into the metadata log: one batch each, and large ones in slices.

To encode, write, read back and replay a thousand records takes tens of milliseconds, in which nobody is served. So a decision of
more than ``RECORDS_PER_SLICE`` becomes several batches within one transaction of the metadata log (BeginTransaction,
EndTransaction: KIP-868), and the loop is free while each is synced. Whoever reads the image sees all of it or nothing, and so
does whoever finds the log after a crash: a start aborts a transaction that has no end.

A slice that cannot be written ends the decision: the transaction is aborted, with the next decision at the latest. Others that
are proposed meanwhile wait, since what is written within a transaction belongs to it.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord, MetadataRecord

# About four milliseconds: half to encode and write them, half to decode them when they are committed.
RECORDS_PER_SLICE = 200

OnDone = Callable[[Exception | None], None]
Write = Callable[[Sequence[MetadataRecord], OnDone], None]


class SlicedProposals:
    __slots__ = ("_image", "_is_busy", "_waiting", "_write")

    def __init__(self, image: ClusterImage, write: Write) -> None:
        """``write`` commits records as one batch, replays them into ``image``, and then calls back."""
        self._image = image
        self._write = write
        self._is_busy = False
        self._waiting: deque[tuple[Sequence[MetadataRecord], OnDone]] = deque()

    def propose(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        """``on_done`` comes when all are committed and the image has them, or with the error: then it has none of them."""
        if self._is_busy:
            self._waiting.append((records, on_done))
        elif len(records) <= RECORDS_PER_SLICE:
            self._write([*self._abort_of_open(), *records], on_done)
        else:
            self._is_busy = True
            self._write_slices(records, on_done)

    def _abort_of_open(self) -> list[MetadataRecord]:
        """Of a transaction whose abort could not be written when its time was."""
        return [AbortTransactionRecord("a part of it could not be written")] if self._image.in_transaction else []

    def _write_slices(self, records: Sequence[MetadataRecord], on_done: OnDone) -> None:
        def write_from(position: int) -> None:
            end = position + RECORDS_PER_SLICE
            head = [*self._abort_of_open(), BeginTransactionRecord()] if position == 0 else []
            tail = [EndTransactionRecord()] if end >= len(records) else []

            def written(error: Exception | None) -> None:
                if error is not None:
                    self._give_up(error, on_done)
                elif tail:
                    self._end(None, on_done)
                else:
                    write_from(end)

            self._write([*head, *records[position:end], *tail], written)

        write_from(0)

    def _give_up(self, error: Exception, on_done: OnDone) -> None:
        abort = self._abort_of_open()
        if abort:
            self._write(abort, lambda _: self._end(error, on_done))
        else:
            self._end(error, on_done)

    def _end(self, error: Exception | None, on_done: OnDone) -> None:
        self._is_busy = False
        on_done(error)
        while self._waiting and not self._is_busy:
            self.propose(*self._waiting.popleft())
