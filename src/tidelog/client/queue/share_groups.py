"""What administrators see and change of share groups: settings, members, backlog and start offsets.

Any broker answers for settings, all brokers together for the list of groups, and a group's coordinator for everything else. Calls
that change nothing are repeated while a coordinator moves or a broker restarts.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tidelog.client.queue.membership import find_coordinator
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.brokers import Brokers, by_topic
from tidelog.client.wire.errors import InvalidAnswer, check_code
from tidelog.client.wire.retries import is_worth_another_attempt
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, Fields
from tidelog.wire.protocol import ApiKey

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000

LOCK_DURATION = "share.record.lock.duration.ms"
OFFSET_RESET = "share.auto.offset.reset"
ORDER = "tidelog.share.order"
ORDER_BY_KEY = "key"
ISOLATION = "share.isolation.level"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY = "errors.deadletterqueue.copy.record.enable"
ORDERS = ("none", ORDER_BY_KEY)
SHARE_TYPE = "share"

_GROUP_RESOURCE = 32
_SET = 0
_OF_THE_GROUP_ITSELF = 8
"""The source of a setting that was given for the group, and is not a default."""

_Result = TypeVar("_Result")


class GroupSetting(NamedTuple):
    value: str | None
    is_own: bool
    """Whether it was set for this group, and is not a default of the broker."""


class ShareGroupListing(NamedTuple):
    name: str
    state: str


class ShareMemberDescription(NamedTuple):
    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class ShareGroupDescription(NamedTuple):
    name: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[ShareMemberDescription, ...]


class ShareOffset(NamedTuple):
    start_offset: int
    """The first message that is not settled."""
    leader_epoch: int
    lag: int | None
    """How many messages are not settled; None if the broker does not say. Apache Kafka says nothing of what follows."""
    acquired: int | None = None
    """How many of them members hold."""
    delayed: int | None = None
    """How many are not due yet; None also while nobody fetches, because nobody looks at them."""
    redelivered: int | None = None
    """How many were delivered before."""
    oldest_timestamp_ms: int | None = None
    """When the first message that is neither settled nor delayed was written; None if there is none."""

    @property
    def available(self) -> int | None:
        """How many could be handed out now, as far as the broker has looked at them."""
        if self.lag is None or self.acquired is None:
            return None
        return max(0, self.lag - self.acquired - (self.delayed or 0))


class ShareGroupAdmin:
    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "tidelog-share-groups",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Connects on the first call."""
        self._brokers = Brokers(bootstrap_servers, client_id, connect_timeout_ms / 1000, request_timeout_ms / 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._brokers.close()

    def settings(self, group: str) -> dict[str, GroupSetting]:
        return group_settings(self._brokers, group)

    def set_settings(self, group: str, settings: Mapping[str, str]) -> None:
        set_group_settings(self._brokers, group, settings)

    def list_groups(self) -> list[ShareGroupListing]:
        """The share groups of the cluster. Each broker lists those that it coordinates."""
        return self._patiently(self._list_groups)

    def describe(self, group: str) -> ShareGroupDescription:
        return self._patiently(partial(self._describe, group))

    def offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """Where the group is in each partition that it has begun to read."""
        return self._patiently(partial(self._offsets, group))

    def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Let a group without members begin at these offsets; everything before counts as settled, everything after does not."""
        topics = [
            {
                "topic_name": topic,
                "partitions": [
                    {"partition_index": index, "start_offset": offsets[TopicPartition(topic, index)]} for index in indexes
                ],
            }
            for topic, indexes in by_topic(offsets).items()
        ]
        what = f"the offsets of {group} were not changed"
        answer = self._ask(group, ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": group, "topics": topics})
        check_code(answer.error_code, what, answer.error_message)
        for topic in answer.responses:
            for each in topic.partitions:
                check_code(each.error_code, f"{what}: {topic.topic_name}-{each.partition_index}", each.error_message)

    def delete_group(self, group: str) -> None:
        """Delete a group that has no members, with its state."""
        answer = self._ask(group, ApiKey.DELETE_GROUPS, {"groups_names": [group]})
        for each in answer.results:
            check_code(each.error_code, f"the group {each.group_id} was not deleted")

    def _patiently(self, attempt: Callable[[], _Result]) -> _Result:
        return self._brokers.patiently(attempt, is_worth_another_attempt)

    def _ask(self, group: str, api: ApiKey, fields: Fields) -> DecodedMessage:
        return self._brokers.request(self._patiently(partial(find_coordinator, self._brokers, group)), api, fields)

    def _list_groups(self) -> list[ShareGroupListing]:
        found = []
        for broker in self._brokers.ask_metadata([]).brokers:
            fields = {"states_filter": [], "types_filter": [SHARE_TYPE]}
            answer = self._brokers.request(broker.node_id, ApiKey.LIST_GROUPS, fields, version_min=5)
            check_code(answer.error_code, f"the groups of broker {broker.node_id} cannot be listed")
            found += [ShareGroupListing(each.group_id, each.group_state) for each in answer.groups]
        return sorted(found)

    def _describe(self, group: str) -> ShareGroupDescription:
        coordinator = find_coordinator(self._brokers, group)
        fields = {"group_ids": [group], "include_authorized_operations": False}
        answer = self._brokers.request(coordinator, ApiKey.SHARE_GROUP_DESCRIBE, fields)
        (found,) = _only(answer.groups, f"group {group}")
        check_code(found.error_code, f"group {group}", found.error_message)
        members = tuple(
            ShareMemberDescription(
                member.member_id,
                member.client_id,
                member.client_host,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for member in found.members
        )
        return ShareGroupDescription(group, found.group_state, found.assignor_name, coordinator, members)

    def _offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        fields = {"groups": [{"group_id": group, "topics": None}]}
        answer = self._brokers.request(find_coordinator(self._brokers, group), ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, fields)
        (found,) = _only(answer.groups, f"group {group}")
        check_code(found.error_code, f"group {group}", found.error_message)
        offsets = {}
        for topic in found.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.topic_name, each.partition_index)
                check_code(each.error_code, f"group {group}, {topic.topic_name}-{each.partition_index}", each.error_message)
                if each.start_offset >= 0:
                    offsets[partition] = ShareOffset(
                        each.start_offset,
                        each.leader_epoch,
                        _known(each.lag),
                        _known(each.acquired_count),
                        _known(each.delayed_count),
                        _known(each.redelivered_count),
                        _known(each.oldest_timestamp_ms),
                    )
        return dict(sorted(offsets.items()))


def _known(figure: int) -> int | None:
    return figure if figure >= 0 else None


def group_settings(brokers: Brokers, group: str) -> dict[str, GroupSetting]:
    """The settings of a group, which has some even before it exists."""
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": group, "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    answer = brokers.patiently(partial(brokers.request_any, ApiKey.DESCRIBE_CONFIGS, fields))
    (found,) = _only(answer.results, f"group {group}")
    check_code(found.error_code, f"the settings of group {group}", found.error_message)
    return {each.name: GroupSetting(each.value, each.config_source == _OF_THE_GROUP_ITSELF) for each in found.configs}


def set_group_settings(brokers: Brokers, group: str, settings: Mapping[str, str]) -> None:
    changes = [{"name": name, "config_operation": _SET, "value": value} for name, value in settings.items()]
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": group, "configs": changes}
    fields = {"resources": [resource], "validate_only": False}

    def attempt() -> None:
        answer = brokers.request_any(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)
        (found,) = _only(answer.responses, f"group {group}")
        check_code(found.error_code, f"the settings of group {group} were not changed", found.error_message)

    # To set them twice is harmless.
    brokers.patiently(attempt, lambda error: is_worth_another_attempt(error) and not _is_refused(error))


def _is_refused(error: Exception) -> bool:
    return getattr(error, "code", None) in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)


def _only(items: Any, what: str) -> Any:
    if len(items) != 1:
        raise InvalidAnswer(f"{what}: the answer has {len(items)} items instead of one")
    return items
