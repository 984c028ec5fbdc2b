"""Producer ids for everybody on this broker, from blocks that the metadata log gives out.

A block is this broker's alone once its record is committed. Ids that were not used when the broker stops are never used: that
costs numbers, of which there are 2^63, and makes reuse impossible. The next block is asked for while the last one still has ids,
so that normally nobody waits.

When none can be had, who asks is told what Kafka tells: COORDINATOR_LOAD_IN_PROGRESS. Every client tries again after that; of an
error of the controller or the disk some make their end, and after COORDINATOR_NOT_AVAILABLE a producer without a transactional
id would look for a coordinator that it has none of.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog.coordinator.errors import CoordinatorLoading

# When this many are left, the next block is asked for: a tenth of Kafka's block size.
LOW_WATER_IDS = 100
# A block takes about one sync of the disk; who waits beyond this is better told to come again.
WAITERS_MAX = 5_000

OnAvailable = Callable[[Exception | None], None]


class ProducerIdBlock(NamedTuple):
    first: int
    size: int


OnBlock = Callable[[ProducerIdBlock | None, Exception | None], None]


class ProducerIds:
    __slots__ = ("_allocate_block", "_blocks", "_is_asking", "_waiters")

    def __init__(self, allocate_block: Callable[[OnBlock], None]) -> None:
        """``allocate_block`` makes the controller give out a block, and calls back when that is committed."""
        self._allocate_block = allocate_block
        self._blocks: deque[ProducerIdBlock] = deque()
        self._is_asking = False
        self._waiters: deque[OnAvailable] = deque()

    @property
    def left(self) -> int:
        return sum([block.size for block in self._blocks])

    def take(self) -> int | None:
        """An id that nobody else has; None when there is none yet, and more were asked for."""
        if not self._blocks:
            self._ask()
            if not self._blocks:
                return None
        first, size = self._blocks[0]
        if size > 1:
            self._blocks[0] = ProducerIdBlock(first + 1, size - 1)
        else:
            self._blocks.popleft()
        if self.left < LOW_WATER_IDS:
            self._ask()
        return first

    def when_available(self, on_available: OnAvailable) -> None:
        """Call back when ``take`` has an id: at once, or when the next block is there. With an error when it cannot be had."""
        if self._blocks and not self._waiters:
            on_available(None)
            return
        if len(self._waiters) >= WAITERS_MAX:
            on_available(CoordinatorLoading(f"{WAITERS_MAX} already wait for a producer id"))
            return
        self._waiters.append(on_available)
        self._ask()

    def _ask(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._allocate_block(self._received)

    def _received(self, block: ProducerIdBlock | None, error: Exception | None) -> None:
        self._is_asking = False
        if block is None:
            # Nobody asks again by himself: the next one who needs an id does.
            waiters, self._waiters = self._waiters, deque()
            for on_available in waiters:
                on_available(CoordinatorLoading(f"no producer ids were given out: {error}"))
            return
        self._blocks.append(block)
        for _ in range(len(self._waiters)):
            if not self._blocks:
                self._ask()
                return
            self._waiters.popleft()(None)
