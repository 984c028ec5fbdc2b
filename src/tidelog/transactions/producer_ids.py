"""Gives producer ids to everyone on this broker, from blocks that the controller allocates in the metadata log.

A block belongs to this broker alone once its record is committed. Ids that are unused when the broker stops are never used: that
wastes some of 2^63 numbers, and makes reuse impossible. The next block is requested while the last one still has ids, so that
normally nobody waits.

If no id is available, the answer is Kafka's: COORDINATOR_LOAD_IN_PROGRESS. Every client retries after that. Some clients treat an
error of the controller or the disk as fatal, and after COORDINATOR_NOT_AVAILABLE a producer without a transactional id would look
for a coordinator, which it does not have.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog.coordinator.errors import CoordinatorLoading

# The next block is requested when this many ids are left: a tenth of Kafka's block size.
LOW_WATER_IDS = 100
# A block takes about one sync of the disk; beyond this many waiting requests it is better to refuse the next.
WAITERS_MAX = 5_000

OnAvailable = Callable[[Exception | None], None]


class ProducerIdBlock(NamedTuple):
    first: int
    size: int


OnBlock = Callable[[ProducerIdBlock | None, Exception | None], None]


class ProducerIds:
    __slots__ = ("_allocate_block", "_blocks", "_is_requested", "_waiters")

    def __init__(self, allocate_block: Callable[[OnBlock], None]) -> None:
        """``allocate_block`` lets the controller allocate a block, and calls back when that is committed."""
        self._allocate_block = allocate_block
        self._blocks: deque[ProducerIdBlock] = deque()
        self._is_requested = False
        self._waiters: deque[OnAvailable] = deque()

    @property
    def left(self) -> int:
        return sum([block.size for block in self._blocks])

    def take(self) -> int | None:
        """Return an id that nobody else has; None when none is available yet, and the next block was requested."""
        if not self._blocks:
            self._request()
            if not self._blocks:
                return None
        first, size = self._blocks[0]
        if size > 1:
            self._blocks[0] = ProducerIdBlock(first + 1, size - 1)
        else:
            self._blocks.popleft()
        if self.left < LOW_WATER_IDS:
            self._request()
        return first

    def when_available(self, on_available: OnAvailable) -> None:
        """Call back when ``take`` has an id, at once or when the next block arrives, or with an error when none is available."""
        if self._blocks and not self._waiters:
            on_available(None)
            return
        if len(self._waiters) >= WAITERS_MAX:
            on_available(CoordinatorLoading(f"{WAITERS_MAX} requests already wait for a producer id"))
            return
        self._waiters.append(on_available)
        self._request()

    def _request(self) -> None:
        if not self._is_requested:
            self._is_requested = True
            self._allocate_block(self._received)

    def _received(self, block: ProducerIdBlock | None, error: Exception | None) -> None:
        self._is_requested = False
        if block is None:
            # There is no retry: the next request that needs an id asks again.
            waiters, self._waiters = self._waiters, deque()
            for on_available in waiters:
                on_available(CoordinatorLoading(f"the controller did not allocate producer ids: {error}"))
            return
        self._blocks.append(block)
        for _ in range(len(self._waiters)):
            if not self._blocks:
                self._request()
                return
            self._waiters.popleft()(None)
