"""Which offsets a member of a consumer group may commit and read.

A commit in the member's own epoch is taken. One with an older epoch (the heartbeat that brought the new one and the commit have
crossed) is taken for the partitions that the member has had since that epoch; any other could move a position that somebody else
has moved on from. Messages are Kafka's.
"""

from typing import TYPE_CHECKING

from tidelog.controller.errors import ApiError
from tidelog.groups.consumer.member import ConsumerGroupMember
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.groups.consumer.group import ConsumerGroup

# Earlier versions of OffsetCommit know no STALE_MEMBER_EPOCH.
COMMIT_VERSION_MIN = 9


def check_commit(group: "ConsumerGroup", member_id: str, member_epoch: int, api_version: int) -> None:
    # A negative epoch: an administrator, or a consumer that chooses its partitions itself.
    if member_epoch < 0 and not group.members:
        return
    member = group.member(member_id)
    if member.classic is None and api_version < COMMIT_VERSION_MIN:
        message = "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)
    if member_epoch > member.member_epoch:
        if member.classic is not None:
            raise _stale(
                member, f"Received generation id {member_epoch} is newer than current member epoch {member.member_epoch}."
            )
        raise _stale(member, f"Received member epoch {member_epoch} is newer than current member epoch {member.member_epoch}.")


def check_partition(
    group: "ConsumerGroup", member_id: str, member_epoch: int, topic_id: bytes, topic: str, partition: int
) -> None:
    member = group.members.get(member_id)
    if member is None or member_epoch >= member.member_epoch:
        return
    epoch = member.assigned.get(topic_id, {}).get(partition)
    if epoch is None:
        epoch = member.pending_revocation.get(topic_id, {}).get(partition)
    if epoch is None:
        raise _stale(member, f"Partition {topic}-{partition} is not assigned or pending revocation for member.")
    if member_epoch < epoch:
        what = "member epoch" if member.classic is None else "generation id"
        raise _stale(
            member, f"Received {what} {member_epoch} is older than assignment epoch {epoch} for partition {topic}-{partition}."
        )


def check_member_epoch(member: ConsumerGroupMember, member_epoch: int) -> None:
    if member_epoch != member.member_epoch:
        what = "member epoch" if member.classic is None else "generation id"
        raise _stale(
            member, f"The received {what} {member_epoch} does not match the expected member epoch {member.member_epoch}."
        )


def _stale(member: ConsumerGroupMember, message: str) -> ApiError:
    code = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
    return ApiError(code, message)
