from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.metadata import features
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey


def update(client: FakeClient, name: str, level: int, *, version: int = 2, **fields: Any) -> DecodedMessage:
    allowed: dict[str, Any] = {}
    if fields.pop("downgrade", False):
        allowed = {"upgrade_type": 2} if version > 0 else {"allow_downgrade": True}
    changes = [{"feature": name, "max_version_level": level, **allowed}]
    return client.call(ApiKey.UPDATE_FEATURES, version, feature_updates=changes, **fields)


@pytest.fixture
def optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(features.SUPPORTED_FEATURES, "optional", (0, 2))


@pytest.mark.usefixtures("optional")
@pytest.mark.parametrize("version", range(3))
def test_a_level_is_raised_and_lowered(client: FakeClient, machine: Machine, version: int) -> None:
    assert update(client, "optional", 2, version=version).error_code == 0
    assert machine.broker.image.features["optional"] == 2
    refused = update(client, "optional", 1, version=version)
    code = refused.error_code if version >= 2 else refused.results[0].error_code
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert update(client, "optional", 1, version=version, downgrade=True).error_code == 0
    assert machine.broker.image.features["optional"] == 1


@pytest.mark.usefixtures("optional")
def test_validating_changes_nothing(client: FakeClient, machine: Machine) -> None:
    assert update(client, "optional", 2, version=1, validate_only=True).error_code == 0
    assert "optional" not in machine.broker.image.features


@pytest.mark.parametrize(("name", "level"), [("nonsense", 1), ("metadata.version", 0), ("metadata.version", 1)])
def test_what_cannot_be(client: FakeClient, name: str, level: int) -> None:
    response = update(client, name, level)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert response.error_message
    (result,) = update(client, name, level, version=1).results
    assert (result.feature, result.error_code) == (name, ErrorCode.INVALID_UPDATE_VERSION)


def quorum_features(client: FakeClient) -> dict[str, int]:
    response = client.call(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    return {feature.name: feature.max_version_level for feature in response.finalized_features}


@pytest.fixture
def reachable() -> Machine:
    """A broker that is a quorum by itself, as every one of an earlier release, and that other controllers can reach."""
    listeners = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    return Machine({"listeners": listeners, "controller.listener.names": "CONTROLLER"})


@pytest.mark.parametrize("version", range(3))
def test_the_voters_move_into_the_log(reachable: Machine, version: int) -> None:
    client, quorum = reachable.client(), reachable.broker.quorum
    assert (quorum.kraft_version, "kraft.version" in quorum_features(client)) == (0, False)
    assert update(client, "kraft.version", 1, version=version).error_code == ErrorCode.NONE
    directory_id = reachable.broker.directory.meta.directory_id
    (voter,) = quorum.voters.voters
    assert (voter.node_id, voter.directory_id, [each.port for each in voter.endpoints]) == (1, directory_id, [9093])
    assert (quorum.kraft_version, quorum_features(client)["kraft.version"]) == (1, 1)
    end_offset = quorum.end_offset
    assert update(client, "kraft.version", 1, version=version).error_code == ErrorCode.NONE
    assert quorum.end_offset == end_offset
    reachable.restart()
    assert (reachable.broker.quorum.kraft_version, reachable.broker.quorum.is_leader) == (1, True)


def test_there_is_no_way_back(reachable: Machine) -> None:
    client = reachable.client()
    update(client, "kraft.version", 1)
    assert update(client, "kraft.version", 0).error_code == ErrorCode.INVALID_UPDATE_VERSION
    refused = update(client, "kraft.version", 0, downgrade=True)
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.INVALID_UPDATE_VERSION,
        "kraft.version is at 1 and cannot become 0.",
    )


def test_a_voter_that_nobody_could_reach_stays_where_it_is(client: FakeClient, machine: Machine) -> None:
    refused = update(client, "kraft.version", 1)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "name a listener for controllers" in refused.error_message
    (result,) = update(client, "kraft.version", 1, version=1).results
    assert (result.feature, result.error_code) == ("kraft.version", ErrorCode.INVALID_UPDATE_VERSION)
    assert machine.broker.quorum.kraft_version == 0


@pytest.mark.usefixtures("optional")
def test_the_voters_stay_if_another_feature_cannot_change(reachable: Machine) -> None:
    client = reachable.client()
    both = [{"feature": "kraft.version", "max_version_level": 1}, {"feature": "optional", "max_version_level": 3}]
    assert client.call(ApiKey.UPDATE_FEATURES, 2, feature_updates=both).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert reachable.broker.quorum.kraft_version == 0
    both[1]["max_version_level"] = 2
    assert client.call(ApiKey.UPDATE_FEATURES, 2, feature_updates=both).error_code == ErrorCode.NONE
    assert (reachable.broker.quorum.kraft_version, reachable.broker.image.features["optional"]) == (1, 2)


def test_looking_leaves_the_voters_where_they_are(reachable: Machine) -> None:
    assert update(reachable.client(), "kraft.version", 1, version=1, validate_only=True).error_code == ErrorCode.NONE
    assert reachable.broker.quorum.kraft_version == 0
