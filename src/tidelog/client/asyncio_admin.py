"""``Admin`` for asyncio: the same calls, each in a helper thread, so that the event loop never waits for the network."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from tidelog.client.admin import REQUEST_TIMEOUT_SECONDS, Admin, ConfigValue, Group, Topic
from tidelog.client.errors import Closed
from tidelog.client.reachability import CONNECT_TIMEOUT_SECONDS


class AsyncAdmin:
    """As ``Admin``; opened by ``async with``, or by ``await admin.start()``."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        timeout: float = REQUEST_TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {"timeout": timeout, "connect_timeout": connect_timeout, "config": config}
        self._bootstrap = bootstrap
        self._admin: Admin | None = None

    async def start(self) -> None:
        """Wait for a broker: BrokerUnavailable names the addresses."""
        self._admin = await asyncio.to_thread(Admin, self._bootstrap, **self._arguments)

    async def close(self) -> None:
        """End the connections. More calls do nothing."""
        if self._admin is not None:
            self._admin.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        exists_ok: bool = False,
        **configs: ConfigValue,
    ) -> bool:
        """As ``Admin.create_topic``."""
        arguments: dict[str, Any] = {
            "partitions": partitions,
            "replication_factor": replication_factor,
            "exists_ok": exists_ok,
            **configs,
        }
        return await asyncio.to_thread(self._opened.create_topic, name, **arguments)

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """As ``Admin.delete_topic``."""
        return await asyncio.to_thread(self._opened.delete_topic, name, missing_ok=missing_ok)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """As ``Admin.list_topics``."""
        return await asyncio.to_thread(self._opened.list_topics, internal=internal)

    async def describe_topic(self, name: str) -> Topic:
        """As ``Admin.describe_topic``."""
        return await asyncio.to_thread(self._opened.describe_topic, name)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """As ``Admin.describe_topics``."""
        return await asyncio.to_thread(self._opened.describe_topics, names)

    async def alter_topic(self, name: str, **configs: ConfigValue) -> None:
        """As ``Admin.alter_topic``."""
        await asyncio.to_thread(self._opened.alter_topic, name, **configs)

    async def add_partitions(self, name: str, total: int) -> None:
        """As ``Admin.add_partitions``."""
        await asyncio.to_thread(self._opened.add_partitions, name, total)

    async def offsets_for_time(self, topic: str, timestamp: int | datetime | str) -> dict[int, int | None]:
        """As ``Admin.offsets_for_time``."""
        return await asyncio.to_thread(self._opened.offsets_for_time, topic, timestamp)

    async def list_groups(self) -> list[Group]:
        """As ``Admin.list_groups``."""
        return await asyncio.to_thread(self._opened.list_groups)

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """As ``Admin.group_offsets``."""
        return await asyncio.to_thread(self._opened.group_offsets, group)

    async def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """As ``Admin.set_group_offsets``."""
        await asyncio.to_thread(self._opened.set_group_offsets, group, offsets)

    async def delete_group(self, group: str) -> None:
        """As ``Admin.delete_group``."""
        await asyncio.to_thread(self._opened.delete_group, group)

    @property
    def _opened(self) -> Admin:
        if self._admin is None:
            raise Closed("the admin client is not open: async with AsyncAdmin(...) as admin: ...")
        return self._admin
