"""``AsyncDeadLetters``: ``DeadLetters`` for asyncio.

Each call runs in a thread of the default executor, because it spends most of its time waiting for the cluster with the
interpreter released. ``progress`` is called in the event loop. Cancelling a call only stops waiting for it: its thread runs to
the end, which is safe, because a replay may be repeated at any time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

from tidelog.deadletters.dead_letter import Depth, LetterCount
from tidelog.deadletters.dead_letters import DeadLetters, FilterArguments, OriginReaders, Shown
from tidelog.deadletters.replay import Progress, ReplayResult

ProgressCallback = Callable[[Progress], None]


class AsyncDeadLetters:
    """The same calls as ``DeadLetters``, which documents them."""

    def __init__(self, bootstrap: str | Sequence[str], *, config: Mapping[str, object] | None = None) -> None:
        self._letters = DeadLetters(bootstrap, config=config)

    async def topics(self) -> list[str]:
        """See ``DeadLetters.topics``."""
        return await asyncio.to_thread(self._letters.topics)

    async def list(self, *topics: str, **filters: Unpack[FilterArguments]) -> list[LetterCount]:
        """See ``DeadLetters.list``."""
        return await asyncio.to_thread(self._letters.list, *topics, **filters)

    async def show(self, topic: str, partition: int, offset: int) -> Shown:
        """See ``DeadLetters.show``."""
        return await asyncio.to_thread(self._letters.show, topic, partition, offset)

    async def replay(
        self,
        topic: str,
        *,
        to_origin: bool = False,
        rate: float | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        **filters: Unpack[FilterArguments],
    ) -> ReplayResult:
        """See ``DeadLetters.replay``."""
        return await asyncio.to_thread(
            self._letters.replay,
            topic,
            to_origin=to_origin,
            rate=rate,
            dry_run=dry_run,
            progress=_in_the_loop(progress),
            **filters,
        )

    async def discard(
        self,
        topic: str,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
        **filters: Unpack[FilterArguments],
    ) -> ReplayResult:
        """See ``DeadLetters.discard``."""
        return await asyncio.to_thread(
            self._letters.discard, topic, reason=reason, dry_run=dry_run, progress=_in_the_loop(progress), **filters
        )

    async def depth(self, *topics: str, estimate: bool = False) -> Sequence[Depth]:
        """See ``DeadLetters.depth``."""
        return await asyncio.to_thread(self._letters.depth, *topics, estimate=estimate)

    async def origin_readers(self, topic: str, **filters: Unpack[FilterArguments]) -> OriginReaders | None:
        """See ``DeadLetters.origin_readers``."""
        return await asyncio.to_thread(self._letters.origin_readers, topic, **filters)


def _in_the_loop(progress: ProgressCallback | None) -> ProgressCallback | None:
    if progress is None:
        return None
    loop, callback = asyncio.get_running_loop(), progress

    def report(state: Progress) -> None:
        loop.call_soon_threadsafe(callback, state)

    return report
