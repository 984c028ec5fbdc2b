"""``AsyncAdmin``: every call of ``Admin`` in a helper thread, so that the event loop never waits for the network."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tidelog.client.admin import REQUEST_TIMEOUT_SECONDS, Admin
from tidelog.client.errors import Closed
from tidelog.client.librdkafka import CONNECT_TIMEOUT_SECONDS

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _in_thread(
    call: Callable[Concatenate[Admin, _Arguments], _Result],
) -> Callable[Concatenate["AsyncAdmin", _Arguments], Coroutine[Any, Any, _Result]]:
    """Make the asyncio version of a method, with the same arguments and documentation."""

    @wraps(call)
    async def twin(self: "AsyncAdmin", /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        return await asyncio.to_thread(call, self._opened, *arguments, **named)

    return twin


class AsyncAdmin:
    """The asyncio twin of ``Admin``. Open it with ``async with``, or with ``await admin.start()``."""

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
        """End the connections. Further calls do nothing."""
        if self._admin is not None:
            self._admin.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    describe_cluster = _in_thread(Admin.describe_cluster)
    identify_cluster = _in_thread(Admin.identify_cluster)
    create_topic = _in_thread(Admin.create_topic)
    create_topics = _in_thread(Admin.create_topics)
    delete_topic = _in_thread(Admin.delete_topic)
    list_topics = _in_thread(Admin.list_topics)
    describe_topic = _in_thread(Admin.describe_topic)
    describe_topics = _in_thread(Admin.describe_topics)
    topic_id = _in_thread(Admin.topic_id)
    add_partitions = _in_thread(Admin.add_partitions)
    alter_topic = _in_thread(Admin.alter_topic)
    alter_configs = _in_thread(Admin.alter_configs)
    describe_configs = _in_thread(Admin.describe_configs)
    offsets_for_time = _in_thread(Admin.offsets_for_time)
    list_offsets = _in_thread(Admin.list_offsets)
    bounds = _in_thread(Admin.bounds)
    list_groups = _in_thread(Admin.list_groups)
    describe_groups = _in_thread(Admin.describe_groups)
    committed_offsets = _in_thread(Admin.committed_offsets)
    group_offsets = _in_thread(Admin.group_offsets)
    groups_with_offsets = _in_thread(Admin.groups_with_offsets)
    set_group_offsets = _in_thread(Admin.set_group_offsets)
    delete_group = _in_thread(Admin.delete_group)
    describe_group = _in_thread(Admin.describe_group)
    lag = _in_thread(Admin.lag)
    delete_records = _in_thread(Admin.delete_records)
    broker_configs = _in_thread(Admin.broker_configs)
    with_topic_limit = _in_thread(Admin.with_topic_limit)

    @property
    def _opened(self) -> Admin:
        if self._admin is None:
            raise Closed("the admin client is not open: async with AsyncAdmin(...) as admin: ...")
        return self._admin
