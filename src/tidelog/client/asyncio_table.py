"""``AsyncTable``: the asyncio twin of ``Table``. It wraps a table with its own thread, and awaits whatever may read a file or
wait.

async with AsyncTable("customers", values="json") as table:
    await table.wait_ready()
    customer = await table.get("customer-42")
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.client.errors import Closed
from tidelog.client.table import Table
from tidelog.client.table.table import LOCAL_BROKER

T = TypeVar("T")
# The number of rows that are fetched from the other thread at once.
_PAGE_ROWS = 500


class AsyncTable:
    """The asyncio twin of ``Table``, with the same arguments and promises. It opens with its first call, or with ``async with``.
    ``on_change`` may be a coroutine function: it runs in the event loop, and the table waits for it."""

    def __init__(self, topic: str, *, bootstrap: str | Sequence[str] = LOCAL_BROKER, **arguments: Any) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._arguments = arguments
        self._table: Table | None = None
        self._is_closed = False
        self._opening = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """See ``Table.ready``."""
        return self._table is not None and self._table.ready

    async def wait_ready(self, timeout: float | None = None) -> None:
        """See ``Table.wait_ready``."""
        await self._call(lambda table: table.wait_ready(timeout))

    async def get(self, key: str | bytes, default: Any = None) -> Any:
        """The newest value of the key, or ``default``."""

        def found(table: Table) -> Any:
            try:
                return table[key]
            except KeyError:
                return default

        return await self._call(found)

    async def contains(self, key: str | bytes) -> bool:
        """Whether there is a row with that key."""
        return await self._call(lambda table: key in table)

    async def count(self) -> int:
        """How many rows there are."""
        return await self._call(len)

    async def rows(self) -> AsyncIterator[tuple[str, Any]]:
        """Keys with their values: ``async for key, value in table.rows()``."""
        iterator = await self._call(lambda table: table.rows())

        def page(_: Table) -> list[tuple[str, Any]]:
            return [row for _, row in zip(range(_PAGE_ROWS), iterator, strict=False)]

        while found := await self._call(page):
            for row in found:
                yield row

    async def close(self) -> None:
        """See ``Table.close``."""
        if not self._is_closed:
            self._is_closed = True
            if self._table is not None:
                await asyncio.to_thread(self._table.close)

    async def __aenter__(self) -> Self:
        await self._call(Table.positions)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _call(self, call: Callable[[Table], T]) -> T:
        if self._is_closed:
            raise Closed(f"table {self.topic} is closed")
        if self._table is None:
            async with self._opening:
                if self._table is None:
                    self._table = await asyncio.to_thread(self._opened, asyncio.get_running_loop())
        return await asyncio.to_thread(call, self._table)

    def _opened(self, loop: asyncio.AbstractEventLoop) -> Table:
        arguments = dict(self._arguments)
        on_change = arguments.get("on_change")
        if inspect.iscoroutinefunction(on_change):
            arguments["on_change"] = lambda key, value: asyncio.run_coroutine_threadsafe(on_change(key, value), loop).result()
        return Table(self.topic, bootstrap=self._bootstrap, **arguments)
