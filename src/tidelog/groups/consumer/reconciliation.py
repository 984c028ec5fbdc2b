"""One step of one member from what it has towards its target assignment.

Revoke before assign: a member first gives up what it should not have, and stays in its epoch until it said (by what it owns) that
it did. Then it takes over the target's epoch and all partitions that nobody else has; for the rest it waits. So a partition has
at most one owner, whoever is slow.
"""

from collections.abc import Callable, Mapping, Set

from tidelog.controller.errors import ApiError
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.consumer.member import AssignedPartitions, ConsumerGroupMember, MemberState
from tidelog.wire.errors import ErrorCode

OwnedPartitions = Mapping[bytes, Set[int]]


class Reconciliation:
    """``owned``: what the member said that it has; None when it said nothing. ``is_free``: nobody but the member has it."""

    __slots__ = ("_is_free", "_member", "_owned", "_subscribed_topic_ids", "_target", "_target_epoch")

    def __init__(
        self,
        member: ConsumerGroupMember,
        target_epoch: int,
        target: Partitions,
        *,
        owned: OwnedPartitions | None,
        subscribed_topic_ids: Set[bytes],
        is_free: Callable[[bytes, int], bool],
    ) -> None:
        self._member = member
        self._target_epoch = target_epoch
        self._target = target
        self._owned = owned
        self._subscribed_topic_ids = subscribed_topic_ids
        self._is_free = is_free

    def next(self, *, has_subscription_changed: bool) -> ConsumerGroupMember:
        """The member as it is after this step; the same when it cannot go on yet."""
        member = self._member
        if member.state is MemberState.UNKNOWN:
            if self._owned is None or any(self._owned.values()):
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
                )
            return self._towards_target(self._target_epoch)
        if member.state is MemberState.STABLE and member.member_epoch == self._target_epoch:
            return self._without_unsubscribed() if has_subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS and self._owns_any(member.pending_revocation):
            return self._without_unsubscribed() if has_subscription_changed else member
        return self._towards_target(member.member_epoch)

    def _owns_any(self, revoked: AssignedPartitions) -> bool:
        if self._owned is None:
            return True
        return any(partition in revoked.get(topic_id, ()) for topic_id, owned in self._owned.items() for partition in owned)

    def _without_unsubscribed(self) -> ConsumerGroupMember:
        """What the member no longer subscribes to goes at once, before there is a new target."""
        member = self._member
        gone = {
            topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in self._subscribed_topic_ids
        }
        if not gone:
            return member
        assigned = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in gone}
        pending = dict(member.pending_revocation)
        for topic_id, partitions in gone.items():
            pending[topic_id] = dict(sorted({**pending.get(topic_id, {}), **partitions}.items()))
        if self._owns_any(pending):
            return member.in_epoch(member.member_epoch)._replace(
                state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, pending_revocation=pending
            )
        return member.in_epoch(member.member_epoch)._replace(assigned=assigned)

    def _towards_target(self, member_epoch: int) -> ConsumerGroupMember:
        member = self._member
        kept: dict[bytes, Mapping[int, int]] = {}
        revoked: dict[bytes, Mapping[int, int]] = {}
        added: dict[bytes, list[int]] = {}
        is_waiting = False
        for topic_id in sorted({*self._target, *member.assigned}):
            target = self._target.get(topic_id, ()) if topic_id in self._subscribed_topic_ids else ()
            current = member.assigned.get(topic_id, {})
            wanted = set(target)
            staying = {partition: epoch for partition, epoch in current.items() if partition in wanted}
            if staying:
                kept[topic_id] = staying
            if len(staying) < len(current):
                revoked[topic_id] = {partition: epoch for partition, epoch in current.items() if partition not in wanted}
            missing = [partition for partition in target if partition not in staying]
            free = [partition for partition in missing if self._is_free(topic_id, partition)]
            is_waiting |= len(free) < len(missing)
            if free:
                added[topic_id] = free
        if revoked and self._owns_any(revoked):
            return member.in_epoch(member_epoch)._replace(
                state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=revoked
            )
        for topic_id, partitions in added.items():
            assigned = {**kept.get(topic_id, {}), **dict.fromkeys(partitions, self._target_epoch)}
            kept[topic_id] = dict(sorted(assigned.items()))
        return member.in_epoch(self._target_epoch)._replace(
            state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
            assigned=dict(sorted(kept.items())),
            pending_revocation={},
        )
