"""The interface that groups of every type share, for offsets, listing and deletion."""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Protocol

from tidelog.config.groups import METADATA_BYTES_MAX, METADATA_BYTES_TOTAL_MAX
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode


class GroupType(Enum):
    """The types of groups. The values are the names that ListGroups uses."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"


class Group(Protocol):
    group_id: str
    rebalances: int
    """Rebalances that ended with a stable group since the group was loaded; the times below are theirs."""
    rebalance_ms_last: int
    rebalance_ms_total: int

    @property
    def type(self) -> GroupType: ...

    @property
    def state_name(self) -> str:
        """Kafka's name for the state: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead, Assigning, Reconciling."""
        ...

    @property
    def protocol_type(self) -> str:
        """``consumer`` for consumers; empty for a group that only holds offsets."""
        ...

    @property
    def has_members(self) -> bool: ...

    @property
    def member_count(self) -> int: ...

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_id_or_member_epoch: int, api_version: int
    ) -> None:
        """Raises ApiError when this member may not commit now."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises ApiError when this member may not read offsets now."""
        ...

    def check_deletion(self) -> None:
        """Raises ApiError (NON_EMPTY_GROUP) when the group cannot be deleted now."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic; then its offsets must not be deleted."""
        ...

    def may_read(self, topic: str) -> bool:
        """Whether a member reads the topic or may do so soon; then its offsets must not expire."""
        ...

    def empty_since_ms(self) -> int | None:
        """The wall-clock time since which the group has had no members, if it is known. Retention of offsets counts from
        there."""
        ...

    def tombstones(self) -> Sequence[Any]:
        """The records that delete the group, without its offsets."""
        ...


class MetadataBudget:
    """Bounds what members of groups make the broker hold, over all its shards: the metadata and assignments of classic members,
    and the subscriptions of others. A member may send megabytes and stay for as long as its session lasts."""

    __slots__ = ("bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0

    def hold(self, change: int) -> None:
        """Metadata that is there already, such as that of a replayed record, is held beyond the bound."""
        self.bytes_held += change

    def has_room(self, size: int) -> bool:
        return self.bytes_held + size <= self.bytes_max


class HeldSubscriptions:
    """Counts the memory that the members of one shard's consumer groups, or share groups, take from the budget. The count follows
    from the replay of their records, so what was there before a limit was lowered stays."""

    __slots__ = ("_budget", "_group_bytes_max", "_sizes", "_totals")

    def __init__(self, budget: MetadataBudget, group_bytes_max: int) -> None:
        self._budget = budget
        self._group_bytes_max = group_bytes_max
        self._sizes: dict[str, dict[str, int]] = {}
        self._totals: dict[str, int] = {}

    def check(self, group_id: str, member_id: str, size: int) -> None:
        """Raises ApiError if a subscription of ``size`` bytes would be more than a group, or all groups together, may hold."""
        added = size - self._sizes.get(group_id, {}).get(member_id, 0)
        if added <= 0:
            return
        if self._totals.get(group_id, 0) + added > self._group_bytes_max:
            message = f"the subscriptions of its members would exceed {METADATA_BYTES_MAX} = {self._group_bytes_max}"
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if not self._budget.has_room(added):
            message = f"the groups of this broker hold as much as {METADATA_BYTES_TOTAL_MAX} allows"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)

    def note(self, group_id: str, key: str, size: int) -> None:
        """Hold ``size`` bytes for a member, or for something else that has a key of its own."""
        sizes = self._sizes.setdefault(group_id, {})
        change = size - sizes.pop(key, 0)
        if size:
            sizes[key] = size
        self._totals[group_id] = self._totals.get(group_id, 0) + change
        self._budget.hold(change)
        if not sizes:
            del self._sizes[group_id], self._totals[group_id]

    def forget(self, group_id: str) -> None:
        self._sizes.pop(group_id, None)
        self._budget.hold(-self._totals.pop(group_id, 0))

    def forget_all(self) -> None:
        """The shard has moved elsewhere."""
        for group_id in list(self._totals):
            self.forget(group_id)


# A string takes this much memory beyond its characters, and with its place in a tuple.
_STRING_BYTES = 32


def subscription_size(names: Iterable[str], *others: str | None) -> int:
    """About how many bytes a member holds: the topics' names, and the other strings that it sent."""
    return sum([_STRING_BYTES + len(name) for name in names]) + sum([len(text) for text in others if text is not None])


class GroupTable:
    """The groups of one shard, by id."""

    __slots__ = ("_count_max", "_groups")

    def __init__(self, count_max: int) -> None:
        self._groups: dict[str, Group] = {}
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def check_room(self) -> None:
        """Called before a request creates a group. Replay creates groups unconditionally."""
        if len(self._groups) >= self._count_max:
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the shard already has {self._count_max} groups, the limit that tidelog.groups.max sets",
            )

    def put(self, group: Group) -> None:
        self._groups[group.group_id] = group

    def remove(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
