"""AsyncAdmin: the same calls, and the event loop goes on meanwhile."""

import asyncio
import inspect
import secrets

import pytest

from tests.toolkit_broker import ToolkitBroker
from tidelog.client.admin import Admin
from tidelog.client.asyncio_admin import AsyncAdmin
from tidelog.client.errors import BrokerUnavailable, Closed, TopicExists, UnknownTopic

ONLY_ONE = {"handle"}


def test_every_call_of_admin_has_its_twin() -> None:
    calls = {name for name, _ in inspect.getmembers(Admin) if not name.startswith("_")} - ONLY_ONE
    twins = {name for name, member in inspect.getmembers(AsyncAdmin) if inspect.iscoroutinefunction(member)}
    assert calls - twins == set()
    for name in calls - {"close"}:
        ours = list(inspect.signature(getattr(Admin, name)).parameters.values())
        assert list(inspect.signature(getattr(AsyncAdmin, name)).parameters.values()) == ours, name


def test_the_calls(kafka: ToolkitBroker) -> None:
    name, group = f"topic-{secrets.token_hex(4)}", f"group-{secrets.token_hex(4)}"

    async def calls() -> None:
        async with AsyncAdmin(kafka.bootstrap) as admin:
            assert await admin.create_topic(name, partitions=2, retention_ms=5000)
            with pytest.raises(TopicExists):
                await admin.create_topic(name)
            await admin.alter_topic(name, retention_ms=6000)
            await admin.add_partitions(name, 3)
            topic = await admin.describe_topic(name)
            assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "6000"})
            assert await admin.describe_topics([name]) == {name: topic}
            assert name in await admin.list_topics()
            assert await admin.offsets_for_time(name, "latest") == {0: 0, 1: 0, 2: 0}
            await admin.set_group_offsets(group, {(name, 0): 1})
            assert await admin.group_offsets(group) == {(name, 0): 1}
            assert group in [found.name for found in await admin.list_groups()]
            await admin.delete_group(group)
            await admin.delete_topic(name)
            with pytest.raises(UnknownTopic):
                await admin.describe_topic(name)
        with pytest.raises(Closed):
            await admin.list_topics()

    asyncio.run(calls())


def test_the_loop_goes_on_while_no_broker_answers() -> None:
    async def open_it() -> int:
        admin = AsyncAdmin("127.0.0.1:1", connect_timeout=0.5)
        opening = asyncio.create_task(admin.start())
        turns = 0
        while not opening.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(BrokerUnavailable, match="127"):
            await opening
        with pytest.raises(Closed, match="async with"):
            await admin.list_topics()
        await admin.close()
        return turns

    assert asyncio.run(open_it()) >= 5
