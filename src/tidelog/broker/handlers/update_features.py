"""UpdateFeatures: changes the levels of finalized features. A request changes all of them or nothing.

Up to version 1 each feature has its own result; from version 2 on the request has one.
"""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, Api, RequestContext
from tidelog.controller.features import FeatureResult, FeatureUpdate, UpgradeType, update_features
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

UPGRADE_TYPE_SINCE = 1
WITHOUT_RESULTS_SINCE = 2


def handle(context: RequestContext, request: DecodedMessage) -> None:
    version = context.header.api_version
    updates = [
        FeatureUpdate(update.feature, update.max_version_level, _upgrade_type(update, version))
        for update in request.feature_updates
    ]
    context.decide(
        lambda image: update_features(image, updates, validate_only=request.validate_only),
        lambda results: _response(results, version),
        request.timeout_ms,
    )


def _upgrade_type(update: DecodedMessage, version: int) -> int:
    if version >= UPGRADE_TYPE_SINCE:
        return int(update.upgrade_type)
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE


def _response(results: list[FeatureResult], version: int) -> dict[str, Any]:
    refused = next((result for result in results if result.error is not ErrorCode.NONE), None)
    if refused is not None and version >= WITHOUT_RESULTS_SINCE:
        return {"error_code": refused.error, "error_message": refused.message}
    return {
        "error_code": ErrorCode.NONE,
        "results": [{"feature": result.name, "error_code": result.error, "error_message": result.message} for result in results],
    }


API = Api(
    key=ApiKey.UPDATE_FEATURES,
    name="UpdateFeatures",
    versions=(0, 2),
    handle=handle,
    listeners=ALL_LISTENERS,
    is_forwarded=True,
    is_repeatable=True,
)
