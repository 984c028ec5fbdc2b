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
