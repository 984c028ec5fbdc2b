import pytest

from tests.controller.cluster import new_image, replay
from tidelog.controller.features import FeatureResult, FeatureUpdate, UpgradeType, update_features
from tidelog.metadata.features import METADATA_VERSION, METADATA_VERSION_LEVEL, SUPPORTED_FEATURES
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import FeatureLevelRecord
from tidelog.wire.errors import ErrorCode


def cluster() -> ClusterImage:
    records = [FeatureLevelRecord(METADATA_VERSION, METADATA_VERSION_LEVEL), FeatureLevelRecord("tides.version", 2)]
    return replay(new_image(), records)


@pytest.fixture(autouse=True)
def _a_feature_with_several_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUPPORTED_FEATURES, "tides.version", (1, 3))


def test_only_what_is_there_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert SUPPORTED_FEATURES == {
        "metadata.version": (30, 30),
        "transaction.version": (0, 2),
        "share.version": (0, 1),
        "kraft.version": (0, 1),
    }


def test_a_level_that_is_there_already_changes_nothing() -> None:
    result = update_features(cluster(), [FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL)], 0)
    assert (result.records, result.response) == ([], [FeatureResult(METADATA_VERSION)])


@pytest.mark.parametrize(
    ("update", "level"),
    [
        (FeatureUpdate("tides.version", 3), 3),
        (FeatureUpdate("tides.version", 1, UpgradeType.SAFE_DOWNGRADE), 1),
        (FeatureUpdate("tides.version", 1, UpgradeType.UNSAFE_DOWNGRADE), 1),
        (FeatureUpdate("tides.version", 0, UpgradeType.SAFE_DOWNGRADE), None),
    ],
)
def test_levels_go_up_down_and_away(update: FeatureUpdate, level: int | None) -> None:
    image = cluster()
    result = update_features(image, [update], 0)
    assert result.response == [FeatureResult("tides.version")]
    assert replay(image, result.records).features.get("tides.version") == level


@pytest.mark.parametrize(
    ("update", "code", "words"),
    [
        (FeatureUpdate("nothing", 1), ErrorCode.INVALID_UPDATE_VERSION, "no feature nothing"),
        (FeatureUpdate("tides.version", 4), ErrorCode.INVALID_UPDATE_VERSION, "1 to 3"),
        (FeatureUpdate("tides.version", -1), ErrorCode.INVALID_UPDATE_VERSION, "1 to 3"),
        (FeatureUpdate("tides.version", 1), ErrorCode.INVALID_UPDATE_VERSION, "allow a downgrade"),
        (FeatureUpdate("tides.version", 3, UpgradeType.SAFE_DOWNGRADE), ErrorCode.INVALID_UPDATE_VERSION, "an upgrade"),
        (FeatureUpdate("tides.version", 3, 0), ErrorCode.INVALID_REQUEST, "upgrade type 0"),
        (FeatureUpdate(METADATA_VERSION, 0, 3), ErrorCode.INVALID_UPDATE_VERSION, "cannot be taken away"),
        (FeatureUpdate(METADATA_VERSION, 29, 3), ErrorCode.INVALID_UPDATE_VERSION, "30 to 30"),
    ],
)
def test_what_is_refused_stops_the_whole_request(update: FeatureUpdate, code: ErrorCode, words: str) -> None:
    good = FeatureUpdate("tides.version", 3)
    other = good if update.name != good.name else FeatureUpdate(METADATA_VERSION, METADATA_VERSION_LEVEL)
    result = update_features(cluster(), [other, update], 0)
    assert result.records == []
    assert [outcome.error for outcome in result.response] == [ErrorCode.NONE, code]
    assert words in (result.response[1].message or "")


def test_duplicates_and_validate_only() -> None:
    up = FeatureUpdate("tides.version", 3)
    result = update_features(cluster(), [up, up], 0)
    assert result.records == []
    assert [outcome.error for outcome in result.response] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert update_features(cluster(), [up], 0, validate_only=True).records == []
