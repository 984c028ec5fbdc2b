"""What one member's request changes in its group, in three steps: subscriptions and the group epoch, the target assignment, the
member's own assignment. Each adds its records; state stays as it is until they are replayed, so each step is given what the one
before it decided.
"""

from typing import Any

from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.consumer import regular_expressions
from tidelog.groups.consumer.group import ConsumerGroup, subscribed_topic_names
from tidelog.groups.consumer.member import ConsumerGroupMember
from tidelog.groups.consumer.reconciliation import OwnedPartitions, Reconciliation
from tidelog.groups.consumer.target_assignment import (
    ASSIGNORS,
    compute_target,
    metadata_hash,
    preferred_assignor,
    subscribed_topic_ids,
    target_records,
)
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataRecord,
    ConsumerGroupRegularExpressionRecord,
    ConsumerGroupRegularExpressionValue,
)


class GroupUpdate:
    """``before`` is the member as it is, ``member`` as it will be; ``replaced_id`` whose place it takes, if it is static."""

    __slots__ = (
        "_before",
        "_environment",
        "_group",
        "_group_epoch",
        "_has_subscription_changed",
        "_replaced_id",
        "_resolved",
        "member",
        "records",
    )

    def __init__(
        self,
        environment: GroupEnvironment,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        member: ConsumerGroupMember,
        replaced_id: str | None,
        records: list[Any],
    ) -> None:
        self._environment = environment
        self._group = group
        self._before = before
        self._replaced_id = replaced_id
        self._group_epoch = group.group_epoch
        self._resolved = group.resolved_regexes
        self._has_subscription_changed = False
        self.member = member
        self.records = records

    def run(self, owned: OwnedPartitions | None) -> ConsumerGroupMember:
        """The member as it is after the request."""
        self._update_subscription()
        epoch, target = self._update_target()
        self._reconcile(epoch, target, owned)
        return self.member

    # -- subscriptions and the group epoch -----------------------------------------------------------------------------------

    def _update_subscription(self) -> None:
        group, before, member = self._group, self._before, self.member
        if member != before:
            self.records.append(ConsumerGroupMemberMetadataRecord(group.group_id, member.member_id, member.metadata()))
        names_changed = member.subscribed_topic_names != before.subscribed_topic_names
        regex_changed = member.subscribed_topic_regex != before.subscribed_topic_regex
        self._has_subscription_changed = names_changed or regex_changed
        topics_version = self._environment.image.topics.version
        is_new = group.group_epoch == 0
        if not (is_new or self._has_subscription_changed or group.topics_version != topics_version or self._is_refresh_due()):
            return
        members = group.members_with(member, self._replaced_id)
        matches_changed = self._update_regexes(members, topics_version)
        names = subscribed_topic_names(members, self._resolved)
        new_hash = metadata_hash(names, self._environment.image)
        if is_new or names_changed or regex_changed or matches_changed or new_hash != group.metadata_hash:
            self._group_epoch += 1
            value = ConsumerGroupMetadataValue(self._group_epoch, new_hash)
            self.records.append(ConsumerGroupMetadataRecord(group.group_id, value))
        if group.has_partition_metadata_record:
            self.records.append(ConsumerGroupPartitionMetadataRecord(group.group_id, None))

    def _is_refresh_due(self) -> bool:
        if not self._group.resolved_regexes:
            return False
        interval_ms = self._environment.settings["group.consumer.regex.refresh.interval.ms"]
        return self._is_older_than(interval_ms)

    def _is_older_than(self, interval_ms: int) -> bool:
        refreshed_ms = self._group.regexes_refreshed_ms
        return refreshed_ms is None or self._environment.clock.monotonic_ms() - refreshed_ms >= interval_ms

    def _update_regexes(self, members: list[ConsumerGroupMember], topics_version: int) -> bool:
        """Whether an expression, new or not, matches other topics than it did."""
        group, image = self._group, self._environment.image
        wanted = sorted({member.subscribed_topic_regex for member in members if member.subscribed_topic_regex})
        resolved = dict(group.resolved_regexes)
        for regex in [regex for regex in resolved if regex not in wanted]:
            del resolved[regex]
            self.records.append(ConsumerGroupRegularExpressionRecord(group.group_id, regex, None))
        unresolved = [regex for regex in wanted if regex not in resolved]
        due = wanted
        if group.topics_version == topics_version and not self._is_refresh_due():
            due = unresolved
        elif not self._is_older_than(regular_expressions.refresh_interval_ms(image)):
            # The group's version is left as it is, so that a later heartbeat asks again.
            due, topics_version = unresolved, group.topics_version
        changed = self._resolve(due, resolved)
        self._resolved = resolved
        group.topics_version = topics_version
        if wanted and due is wanted:
            group.regexes_refreshed_ms = self._environment.clock.monotonic_ms()
        return changed

    def _resolve(self, regexes: list[str], resolved: dict[str, ConsumerGroupRegularExpressionValue]) -> bool:
        changed = False
        if regexes:
            now_ms = self._environment.clock.now_ms()
            for regex, value in regular_expressions.resolve(regexes, self._environment.image, now_ms).items():
                changed |= regex not in resolved or resolved[regex].topics != value.topics
                resolved[regex] = value
                self.records.append(ConsumerGroupRegularExpressionRecord(self._group.group_id, regex, value))
        return changed

    # -- the target assignment -----------------------------------------------------------------------------------------------

    def _update_target(self) -> tuple[int, Partitions]:
        group, member = self._group, self.member
        current = group.target
        if self._replaced_id is not None:
            current = {**current, member.member_id: group.target_of(self._replaced_id)}
        if self._group_epoch <= group.assignment_epoch:
            return group.assignment_epoch, current.get(member.member_id, {})
        members = group.members_with(member, self._replaced_id)
        assignor = preferred_assignor(members, self._environment.settings["group.consumer.assignors"][0])
        target = compute_target(members, current, ASSIGNORS[assignor], self._resolved, self._environment.image)
        self.records += target_records(group, target, self._group_epoch, self._environment.clock.now_ms())
        return self._group_epoch, target[member.member_id]

    # -- the member's assignment ---------------------------------------------------------------------------------------------

    def _reconcile(self, epoch: int, target: Partitions, owned: OwnedPartitions | None) -> None:
        group, member = self._group, self.member
        if member.is_reconciled_to(epoch) and not self._has_subscription_changed:
            return
        mine = member.member_id
        reconciliation = Reconciliation(
            member,
            epoch,
            target,
            owned=owned,
            subscribed_topic_ids=subscribed_topic_ids(member, self._resolved, self._environment.image),
            is_free=lambda topic_id, partition: group.owners.get((topic_id, partition), mine) in (mine, self._replaced_id),
        )
        self.member = reconciliation.next(has_subscription_changed=self._has_subscription_changed)
        if self.member != member:
            value = self.member.current_assignment()
            self.records.append(ConsumerGroupCurrentMemberAssignmentRecord(group.group_id, mine, value))
