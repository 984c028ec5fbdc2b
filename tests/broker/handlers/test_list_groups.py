"""ListGroups through the broker: all shards, or none."""

from typing import Any

import pytest

from tests.broker.handlers.classic_members import stable_group
from tests.broker.handlers.group_clients import commit, find_coordinator
from tests.broker.harness import FakeClient, Machine
from tidelog.coordinator.errors import CoordinatorLoading, NotCoordinator
from tidelog.coordinator.machine import OnDone
from tidelog.coordinator.shard import ShardState
from tidelog.wire.errors import ErrorCode
from tidelog.wire.protocol import ApiKey


def wait_for_all(machine: Machine) -> None:
    groups = machine.broker.coordinators.groups
    machine.run_until(lambda: all(shard is not None and shard.state is ShardState.ACTIVE for shard in groups.shards().values()))


@pytest.fixture
def client(machine: Machine) -> FakeClient:
    client = machine.client()
    client.create_topic("orders")
    find_coordinator(client)
    stable_group(machine)
    for group_id in ("a", "b", "c", "d"):
        commit(client, {"orders": {0: 1}}, group_id=group_id)
    wait_for_all(machine)
    return client


@pytest.mark.parametrize("version", range(6))
def test_groups_of_all_shards_in_every_version(client: FakeClient, version: int) -> None:
    answer = client.call(ApiKey.LIST_GROUPS, version)
    assert answer.error_code == ErrorCode.NONE
    shown = {group.group_id: group for group in answer.groups}
    assert sorted(shown) == ["a", "b", "c", "d", "g"]
    assert (shown["g"].protocol_type, shown["a"].protocol_type) == ("consumer", "")
    if version >= 4:
        assert (shown["g"].group_state, shown["a"].group_state) == ("Stable", "Empty")
    if version >= 5:
        assert {group.group_type for group in answer.groups} == {"Classic"}


def test_filters(client: FakeClient) -> None:
    def listed(states: list[str], types: list[str]) -> list[str]:
        answer = client.call(ApiKey.LIST_GROUPS, 5, states_filter=states, types_filter=types)
        assert answer.error_code == ErrorCode.NONE
        return sorted(group.group_id for group in answer.groups)

    assert listed(["stable"], []) == ["g"]
    assert listed(["Empty", "Nonsense"], ["classic"]) == ["a", "b", "c", "d"]
    assert listed([], ["consumer"]) == []


class LoadingShard:
    """Whoever asks it hears that it is not loaded yet."""

    def read(self, query: object, on_done: OnDone) -> None:
        on_done(None, CoordinatorLoading("not yet"))


@pytest.mark.parametrize("shard", [LoadingShard(), None])
def test_no_list_while_a_shard_is_loaded(client: FakeClient, monkeypatch: pytest.MonkeyPatch, shard: LoadingShard | None) -> None:
    service = client.machine.broker.coordinators.groups
    shards: dict[int, Any] = dict(service.shards())
    monkeypatch.setattr(service, "shards", lambda: {**shards, 99: shard})
    answer = client.call(ApiKey.LIST_GROUPS, 5)
    assert (answer.error_code, answer.groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
    monkeypatch.undo()
    assert len(client.call(ApiKey.LIST_GROUPS, 5).groups) == 5


class LostShard:
    """Whoever asks it hears that it is gone."""

    def read(self, query: object, on_done: OnDone) -> None:
        on_done(None, NotCoordinator("gone"))


@pytest.mark.parametrize(
    ("is_still_led", "code", "count"), [(True, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0), (False, ErrorCode.NONE, 5)]
)
def test_a_shard_that_is_lost_meanwhile(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, is_still_led: bool, code: ErrorCode, count: int
) -> None:
    """Another broker lists its groups, if another one leads it now."""
    service = client.machine.broker.coordinators.groups
    shards: dict[int, Any] = dict(service.shards())
    led = iter([{**shards, 99: LostShard()}, {**shards, **({99: None} if is_still_led else {})}])
    monkeypatch.setattr(service, "shards", lambda: next(led))
    answer = client.call(ApiKey.LIST_GROUPS, 5)
    assert (answer.error_code, len(answer.groups)) == (code, count)


def test_without_a_group_ever(machine: Machine) -> None:
    answer = machine.client().call(ApiKey.LIST_GROUPS, 5)
    assert (answer.error_code, answer.groups) == (ErrorCode.NONE, ())
