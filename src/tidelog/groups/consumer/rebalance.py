"""Applies one member's request to its group: subscription and group epoch, target assignment, the member's own assignment.

Each step adds its records. The state does not change until they are replayed, so each step gets what the previous one decided.

**Regular expressions** are matched here and not in the client. Any client may send one, so they go to RE2, which matches in time
linear in the text and refuses what it cannot match so. The matches of an expression are kept in the log, and looked up again when
topics appear or disappear, but not more often than is worth the work.

The **target assignment** is what every member should have, computed for the whole group when its epoch has moved.

**Reconciliation** moves one member one step towards its target. It revokes before it assigns: a member first releases what it
should not have, and stays in its epoch until it has confirmed that by listing what it owns. Then it takes over the target's epoch
and all partitions that nobody else has; for the rest it waits. So a partition has at most one owner, however slow its members
are.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from tidelog.config.regular_expressions import InvalidExpression, full_matcher
from tidelog.controller.errors import ApiError
from tidelog.groups.assignors.range import assign_range
from tidelog.groups.assignors.specification import Assignor, MemberSubscription, Partitions
from tidelog.groups.assignors.uniform import assign_uniform
from tidelog.groups.consumer.group import (
    AssignedPartitions,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    subscribed_topic_names,
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
    ConsumerGroupTargetAssignmentMemberRecord,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataRecord,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
)
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode

# RE2 takes about 2 us per name: with these, one group's expressions take at most a few thousandths of the time.
REFRESH_MS_MIN = 1_000
REFRESH_MS_PER_TOPIC = 1


def _refresh_interval_ms(image: ClusterImage) -> int:
    """How long the last matches may be used, even if topics were created since."""
    return max(REFRESH_MS_MIN, len(image.topics) * REFRESH_MS_PER_TOPIC)


def _match_topics(regexes: Iterable[str], image: ClusterImage, now_ms: int) -> dict[str, ConsumerGroupRegularExpressionValue]:
    """Return, for each expression, the topics whose whole name matches, in order."""
    names = sorted([topic.name for topic in image.topics])
    resolved = {}
    for regex in regexes:
        matches = _matcher(regex)
        topics = tuple([name for name in names if matches(name)])
        resolved[regex] = ConsumerGroupRegularExpressionValue(topics, image.last_offset, now_ms)
    return resolved


def _matcher(regex: str) -> Callable[[str], bool]:
    try:
        return full_matcher(regex)
    except InvalidExpression as error:
        # A lone surrogate is what makes a text invalid, and the answer could not be encoded with it.
        shown = regex.encode(errors="replace").decode()
        message = f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {error}."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}

ResolvedRegexes = Mapping[str, ConsumerGroupRegularExpressionValue]


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """A hash of everything that an assignment depends on, over the topics that exist; 0 when there are none. Kafka's hash
    differs, so a group that changes hands is reassigned once."""
    digest = hashlib.blake2b(digest_size=8)
    exists = False
    for name in sorted(names):
        topic = image.topic(name)
        if topic is not None:
            exists = True
            digest.update(topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if exists else 0


def subscribed_topic_ids(member: ConsumerGroupMember, resolved: ResolvedRegexes, image: ClusterImage) -> frozenset[bytes]:
    """The ids of the subscribed topics that exist."""
    names = set(member.subscribed_topic_names)
    regex = resolved.get(member.subscribed_topic_regex or "")
    if regex is not None:
        names.update(regex.topics)
    topics = map(image.topic, names)
    return frozenset([topic.topic_id for topic in topics if topic is not None])


def preferred_assignor(members: Iterable[ConsumerGroupMember], default: str) -> str:
    """The assignor that most members name; the first by name wins a tie. A member has no vote if it names no assignor, or one
    that this broker does not have."""
    votes: dict[str, int] = {}
    for member in members:
        if member.server_assignor in ASSIGNORS:
            votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
    return min(votes, key=lambda name: (-votes[name], name), default=default)


def compute_target(
    members: Iterable[ConsumerGroupMember],
    current: Mapping[str, Partitions],
    assignor: Assignor,
    resolved: ResolvedRegexes,
    image: ClusterImage,
) -> dict[str, dict[bytes, tuple[int, ...]]]:
    """``current`` is the current target assignment, by member id."""
    specifications = {}
    partition_counts: dict[bytes, int] = {}
    # Most members have equal subscriptions, and comparing a set with itself is immediate.
    topic_ids_by_subscription: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}
    for member in members:
        subscription = (member.subscribed_topic_names, member.subscribed_topic_regex)
        topic_ids = topic_ids_by_subscription.get(subscription)
        if topic_ids is None:
            topic_ids = topic_ids_by_subscription[subscription] = subscribed_topic_ids(member, resolved, image)
            for topic_id in topic_ids:
                topic = image.topic_by_id(topic_id)
                partition_counts[topic_id] = 0 if topic is None else len(topic.partitions)
        specifications[member.member_id] = MemberSubscription(topic_ids, member.instance_id, current.get(member.member_id, {}))
    return assignor(specifications, partition_counts)


def target_records(group: ConsumerGroup, target: Mapping[str, Partitions], assignment_epoch: int, now_ms: int) -> list[Any]:
    """The differences from the group's target assignment, and the epoch."""
    records: list[Any] = [
        target_record(group.group_id, member_id, partitions)
        for member_id, partitions in sorted(target.items())
        if group.target.get(member_id) != partitions
    ]
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch, now_ms)
    records.append(ConsumerGroupTargetAssignmentMetadataRecord(group.group_id, value))
    return records


def target_record(group_id: str, member_id: str, partitions: Partitions) -> ConsumerGroupTargetAssignmentMemberRecord:
    topics = tuple([TargetTopicPartitions(topic_id, indexes) for topic_id, indexes in sorted(partitions.items())])
    return ConsumerGroupTargetAssignmentMemberRecord(group_id, member_id, ConsumerGroupTargetAssignmentMemberValue(topics))


OwnedPartitions = Mapping[bytes, Set[int]]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    member: ConsumerGroupMember
    target_epoch: int
    target: Partitions
    owned: OwnedPartitions | None
    """The partitions that the member reports; None when it does not report them."""
    subscribed_topic_ids: Set[bytes]
    is_free: Callable[[bytes, int], bool]
    """Whether no other member has the partition."""

    def next(self, *, has_subscription_changed: bool) -> ConsumerGroupMember:
        """The member after this step; the same object when it cannot advance yet."""
        member = self.member
        if member.state is MemberState.UNKNOWN:
            if self.owned is None or any(self.owned.values()):
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
                )
            return self._towards_target(self.target_epoch)
        if member.state is MemberState.STABLE and member.member_epoch == self.target_epoch:
            return self._without_unsubscribed() if has_subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS and self._owns_any(member.pending_revocation):
            return self._without_unsubscribed() if has_subscription_changed else member
        return self._towards_target(member.member_epoch)

    def _owns_any(self, revoked: AssignedPartitions) -> bool:
        if self.owned is None:
            return True
        return any(partition in revoked.get(topic_id, ()) for topic_id, owned in self.owned.items() for partition in owned)

    def _without_unsubscribed(self) -> ConsumerGroupMember:
        """Revoke immediately what the member no longer subscribes to, before there is a new target."""
        member = self.member
        gone = {
            topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in self.subscribed_topic_ids
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
        member = self.member
        kept: dict[bytes, Mapping[int, int]] = {}
        revoked: dict[bytes, Mapping[int, int]] = {}
        added: dict[bytes, list[int]] = {}
        is_waiting = False
        for topic_id in sorted({*self.target, *member.assigned}):
            target = self.target.get(topic_id, ()) if topic_id in self.subscribed_topic_ids else ()
            current = member.assigned.get(topic_id, {})
            targeted = set(target)
            staying = {partition: epoch for partition, epoch in current.items() if partition in targeted}
            if staying:
                kept[topic_id] = staying
            if len(staying) < len(current):
                revoked[topic_id] = {partition: epoch for partition, epoch in current.items() if partition not in targeted}
            missing = [partition for partition in target if partition not in staying]
            free = [partition for partition in missing if self.is_free(topic_id, partition)]
            is_waiting |= len(free) < len(missing)
            if free:
                added[topic_id] = free
        if revoked and self._owns_any(revoked):
            return member.in_epoch(member_epoch)._replace(
                state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=revoked
            )
        for topic_id, partitions in added.items():
            assigned = {**kept.get(topic_id, {}), **dict.fromkeys(partitions, self.target_epoch)}
            kept[topic_id] = dict(sorted(assigned.items()))
        return member.in_epoch(self.target_epoch)._replace(
            state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
            assigned=dict(sorted(kept.items())),
            pending_revocation={},
        )


class GroupUpdate:
    """``before`` is the current member, ``member`` is the one that the request makes of it; ``replaced_id`` is the id that a
    static member replaces."""

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
        """Return the member after the request."""
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
        """Update the matches. Returns whether any expression now matches other topics."""
        group, image = self._group, self._environment.image
        in_use = sorted({member.subscribed_topic_regex for member in members if member.subscribed_topic_regex})
        resolved = dict(group.resolved_regexes)
        for regex in [regex for regex in resolved if regex not in in_use]:
            del resolved[regex]
            self.records.append(ConsumerGroupRegularExpressionRecord(group.group_id, regex, None))
        unresolved = [regex for regex in in_use if regex not in resolved]
        due = in_use
        if group.topics_version == topics_version and not self._is_refresh_due():
            due = unresolved
        elif not self._is_older_than(_refresh_interval_ms(image)):
            # Keep the group's version, so that a later heartbeat tries again.
            due, topics_version = unresolved, group.topics_version
        changed = self._resolve(due, resolved)
        self._resolved = resolved
        is_refreshed = in_use and due is in_use
        group.note_topics(topics_version, self._environment.clock.monotonic_ms() if is_refreshed else None)
        return changed

    def _resolve(self, regexes: list[str], resolved: dict[str, ConsumerGroupRegularExpressionValue]) -> bool:
        changed = False
        if regexes:
            now_ms = self._environment.clock.now_ms()
            for regex, value in _match_topics(regexes, self._environment.image, now_ms).items():
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
