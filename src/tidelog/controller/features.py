"""Changes finalized features: what every broker of the cluster has agreed to do.

A level can be set if this release supports it (``metadata.features``). One feature that cannot be changed as requested fails the
whole request, as in Kafka. The level of ``kraft.version`` is not in the image, and no metadata record changes it: the quorum does
(``raft.quorum``), before the rest of the request is decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.metadata.features import KRAFT_VERSION, METADATA_VERSION, SUPPORTED_FEATURES
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import FeatureLevelRecord, MetadataRecord
from tidelog.wire.errors import ErrorCode


class UpgradeType(IntEnum):
    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    name: str
    level: int
    """Level 0 removes the feature."""
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True)
class FeatureResult:
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def finalized_features(image: ClusterImage, kraft_version: int) -> dict[str, int]:
    """The levels of all features that are finalized, also of the one that the quorum keeps."""
    return {**image.features, KRAFT_VERSION: kraft_version} if kraft_version else image.features


def update_features(
    image: ClusterImage, updates: Sequence[FeatureUpdate], kraft_version: int, *, validate_only: bool = False
) -> ControllerResult[list[FeatureResult]]:
    levels = finalized_features(image, kraft_version)
    records: list[MetadataRecord] = []
    results: list[FeatureResult] = []
    seen: set[str] = set()
    for update in updates:
        try:
            if update.name in seen:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{update.name} is given twice")
            seen.add(update.name)
            _check(levels, update)
        except ApiError as error:
            results.append(FeatureResult(update.name, error.code, error.message))
            continue
        if levels.get(update.name, 0) != update.level and update.name != KRAFT_VERSION:
            records.append(FeatureLevelRecord(update.name, update.level))
        results.append(FeatureResult(update.name))
    is_refused = any(result.error is not ErrorCode.NONE for result in results)
    return ControllerResult([] if validate_only or is_refused else records, results)


def _check(levels: Mapping[str, int], update: FeatureUpdate) -> None:
    name, level = update.name, update.level
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None:
        raise _invalid(f"there is no feature {name}")
    low, high = supported
    if level == 0 and name == METADATA_VERSION:
        raise _invalid(f"{name} cannot be taken away")
    if level != 0 and not low <= level <= high:
        raise _invalid(f"{name} has levels {low} to {high} here, not {level}")
    if update.upgrade_type not in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no upgrade type {update.upgrade_type}")
    current = levels.get(name, 0)
    if level < current and update.upgrade_type == UpgradeType.UPGRADE:
        raise _invalid(f"{name} is at {current}; to lower it to {level} the request must allow a downgrade")
    if level > current and update.upgrade_type != UpgradeType.UPGRADE:
        raise _invalid(f"{name} is at {current}; {level} would be an upgrade, but the request asks for a downgrade")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, message)
