"""What ShareFetch and ShareAcknowledge have in common: the checks of a request, and the settling of what it acknowledges."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.api import RequestContext
from tidelog.broker.share_sessions import TopicIndex
from tidelog.controller.errors import ApiError
from tidelog.metadata.features import SHARE_VERSION
from tidelog.ports.steps import Steps
from tidelog.queues.acknowledgements import AcknowledgementBatch, AcknowledgeType, check_acknowledgements
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

RENEWAL_SINCE = 2
# Settling pauses between partitions after this many types of acknowledgement, each of which may take ten microseconds.
TYPES_PER_STEP = 500

Acknowledgements = Mapping[TopicIndex, list[AcknowledgementBatch]]
AcknowledgeErrors = dict[TopicIndex, tuple[ErrorCode, str]]


def check_share_groups_enabled(broker: "BrokerNode") -> None:
    if not broker.image.features.get(SHARE_VERSION, 0):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "Share groups are not enabled: raise the feature share.version to 1.")


def check_member(group_id: str | None, member_id: str | None) -> None:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if not member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")


def acknowledgements_of(request: DecodedMessage) -> Acknowledgements:
    """The batches of each partition that has any, in the order of the request. A partition that is named twice has the batches of
    both places, as if it was named once."""
    found: dict[TopicIndex, list[AcknowledgementBatch]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                found.setdefault((topic.topic_id, partition.partition_index), []).extend(
                    [
                        AcknowledgementBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                        for batch in partition.acknowledgement_batches
                    ]
                )
    return found


def settle(
    context: RequestContext,
    group_id: str,
    member_id: str,
    acknowledgements: Acknowledgements,
    on_settled: Callable[[AcknowledgeErrors], None],
) -> Steps[None]:
    """Settle the records of every partition, each by itself: all that is said about one partition, or nothing of it. Call back
    with what was refused when everything else is committed."""
    errors: AcknowledgeErrors = {}
    missing = len(acknowledgements)
    if not missing:
        on_settled(errors)
        return
    version, is_renewal = context.header.api_version, bool(context.request.is_renew_ack)
    shares = context.broker.share_sessions.share_partitions

    def finish(which: TopicIndex, error: Exception | None) -> None:
        nonlocal missing
        missing -= 1
        if error is not None:
            errors[which] = context.code_of(error)
        if not missing:
            on_settled(errors)

    settled = 0
    for which, batches in acknowledgements.items():
        settled += sum(len(batch.acknowledge_types) for batch in batches)
        if settled > TYPES_PER_STEP:
            settled = 0
            yield
        try:
            type_max = AcknowledgeType.RENEW if version >= RENEWAL_SINCE else AcknowledgeType.REJECT
            check_acknowledgements(batches, type_max, is_renewal)
            renews = any(kind == AcknowledgeType.RENEW for batch in batches for kind in batch.acknowledge_types)
            if renews and not shares.settings.may_renew(group_id):
                raise ApiError(ErrorCode.INVALID_RECORD_STATE, "Renewing locks is disabled for this group.")
            # Finds the error of a partition that does not exist, or is led elsewhere.
            leader = shares.find_existing(group_id, *which) or shares.find(group_id, *which)
        except Exception as error:
            finish(which, error)
            continue
        leader.acknowledge(member_id, batches, partial(finish, which))
