"""Decisions one after the other, each on the image that the one before it left.

A decision looks at the image, but its records change the image only when they are committed. Two decisions at once could both
create the same topic, so the next one waits until the last one's records were replayed (about one sync of the disk).

Clients can ask faster than a disk syncs. So no more than ``WAITING_MAX`` wait, and one whose asker has gone or was told that time
is up is dropped when its turn comes, not begun.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.controller.result import ControllerResult
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import MetadataRecord
from tidelog.wire.errors import ErrorCode

Decide = Callable[[ClusterImage], ControllerResult[Any]]
OnDecided = Callable[[Any, Exception | None], None]
IsWanted = Callable[[], bool]
Propose = Callable[[Sequence[MetadataRecord], Callable[[Exception | None], None]], None]

# Some ten seconds of a disk's syncs; who would wait for longer does better to ask again.
WAITING_MAX = 5_000


def _always() -> bool:
    return True


class DecisionQueue:
    __slots__ = ("_image", "_is_busy", "_propose", "_waiting")

    def __init__(self, image: ClusterImage, propose: Propose) -> None:
        """``propose`` commits records as one batch, replays them into ``image``, and then calls back."""
        self._image = image
        self._propose = propose
        self._waiting: deque[tuple[Decide, OnDecided, IsWanted]] = deque()
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, decide: Decide, on_decided: OnDecided, is_wanted: IsWanted = _always) -> None:
        """``on_decided`` gets the response when it is true, or the error that ``decide`` raised or that committing met. Nothing
        is decided, and nobody called, if ``is_wanted`` says no when the turn comes."""
        if len(self._waiting) >= WAITING_MAX:
            on_decided(None, ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{WAITING_MAX} changes of metadata wait already: ask again"))
            return
        self._waiting.append((decide, on_decided, is_wanted))
        if not self._is_busy:
            self._run()

    def _run(self) -> None:
        """A loop and not a recursion: hundreds of decisions may wait that change nothing and end at once."""
        while self._waiting and not self._is_busy:
            decide, on_decided, is_wanted = self._waiting.popleft()
            if not is_wanted():
                continue
            self._is_busy = True
            try:
                result = decide(self._image)
            except Exception as error:
                self._is_busy = False
                on_decided(None, error)
                continue
            if result.records:
                self._commit(result, on_decided)
            else:
                self._is_busy = False
                on_decided(result.response, None)

    def _commit(self, result: ControllerResult[Any], on_decided: OnDecided) -> None:
        is_over = False

        def committed(error: Exception | None) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._is_busy = False
            on_decided(None if error is not None else result.response, error)
            self._run()

        try:
            self._propose(result.records, committed)
        except Exception as error:
            # Nothing was proposed. Without this nothing would ever be decided again.
            committed(error)
