"""UpdateFeatures: changes the levels of finalized features. A request changes all of them or nothing.

Up to version 1 each feature has its own result; from version 2 on the request has one.

The quorum changes ``kraft.version``, and a decision of the controller the other features. So that a request still changes all or
nothing, the others are checked first and decided last. If a decision that came between makes them impossible, the client is told.
"""

from typing import Any

from tidelog.broker.api import ALL_LISTENERS, DECISION_MS_MAX, Api, RequestContext
from tidelog.controller.features import FeatureResult, FeatureUpdate, UpgradeType, update_features
from tidelog.metadata.features import KRAFT_VERSION
from tidelog.raft.errors import NotQuorumLeader
from tidelog.raft.messages import ChangeVoterReply, QuorumReply, UpgradeKRaftVersion
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
    quorum = context.broker.quorum
    wanted = next((update.level for update in updates if update.name == KRAFT_VERSION), None)

    def decide() -> None:
        context.decide(
            lambda image: update_features(image, updates, quorum.kraft_version, validate_only=request.validate_only),
            lambda results: _response(results, version),
            request.timeout_ms,
        )

    def upgraded(reply: QuorumReply) -> None:
        assert isinstance(reply, ChangeVoterReply), "it answers this request"
        if reply.error is ErrorCode.NONE:
            # The records are committed, and the image has them when this turn ends: then the controller decides again.
            context.broker.timers.schedule(0, decide)
        elif reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            context.ask_elsewhere(NotQuorumLeader(reply.message))
        else:
            refused = FeatureResult(KRAFT_VERSION, reply.error, reply.message)
            context.reply_later(lambda: _response([refused], version))

    checked = update_features(context.broker.image, updates, quorum.kraft_version, validate_only=True).response
    if wanted is None or any(result.error is not ErrorCode.NONE for result in checked):
        decide()
    else:
        timeout_ms = request.timeout_ms if request.timeout_ms > 0 else DECISION_MS_MAX
        quorum.handle(UpgradeKRaftVersion(wanted, timeout_ms, request.validate_only), upgraded)


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
