"""Runs the controller's decisions one after the other: each sees the image that the previous one left.

A decision reads the image, but its records change the image only when they are committed. Two decisions at once could both
create the same topic, so the next one waits until the records of the last one are replayed (about one sync of the disk).

Clients can send requests faster than a disk syncs. So at most ``WAITING_MAX`` decisions wait, and a decision whose client has
disconnected or timed out is dropped when its turn comes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import MetadataRecord
from tidelog.wire.errors import ErrorCode

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[Response]):
    """The outcome of a decision: records for the metadata log, and the response that holds once they are committed."""

    records: list[MetadataRecord]
    """One atomic batch. If it is empty, nothing changes and the response holds at once."""
    response: Response


Decide = Callable[[ClusterImage], ControllerResult[Any]]
OnDecided = Callable[[Any, Exception | None], None]
IsWanted = Callable[[], bool]
Propose = Callable[[Sequence[MetadataRecord], Callable[[Exception | None], None]], None]

# About ten seconds of disk syncs; a client that would wait for longer had better retry.
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
        """``on_decided`` gets the response once it holds, or the error of ``decide`` or of the commit. If ``is_wanted`` returns
        False when the turn comes, nothing is decided and nobody is called."""
        if len(self._waiting) >= WAITING_MAX:
            on_decided(
                None, ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{WAITING_MAX} metadata changes are already waiting; retry later")
            )
            return
        self._waiting.append((decide, on_decided, is_wanted))
        if not self._is_busy:
            self._run()

    def _run(self) -> None:
        """This is a loop and not a recursion, because hundreds of waiting decisions may change nothing and end at once."""
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
            # Nothing was proposed. Without this the queue would stay busy forever.
            committed(error)
