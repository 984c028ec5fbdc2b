"""Changes settings while the cluster runs: those of a topic, a group, a subscription to client metrics, a broker, or all
brokers.

AlterConfigs replaces all settings of a resource; IncrementalAlterConfigs changes single settings. Both end in the same place: the
settings that the resource would have are checked as a whole, and the differences become records.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tidelog.config.broker import BROKER
from tidelog.config.client_metrics import CLIENT_METRICS, MATCH
from tidelog.config.definition import inherit, inherit_leniently, parse, read_leniently
from tidelog.config.groups import GROUP
from tidelog.config.topic import TOPIC
from tidelog.config.types import InvalidSetting, SettingType, Value
from tidelog.controller.config_sources import DYNAMIC_BROKER_SETTINGS, StaticConfig, describe_topic, inherited_values, show
from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.election import settings_changed
from tidelog.controller.errors import ApiError
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ConfigRecord, MetadataRecord
from tidelog.wire.errors import ErrorCode

# The settings of topics on which leaders and eligible replicas depend.
ELECTION_SETTINGS = frozenset(("min.insync.replicas", "unclean.leader.election.enable"))
# The settings by which leaders and followers decide what is durable, and the controller who has it. If a leader needed fewer
# replicas than the controller believes, the controller would elect a replica that lacks what the leader has acknowledged.
SAME_ON_ALL_BROKERS = ("min.insync.replicas", "log.flush.interval.messages")


class AlterOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    value: str | None
    operation: int = AlterOperation.SET


@dataclass(frozen=True, slots=True)
class ResourceChanges:
    resource_type: int
    resource_name: str
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, slots=True)
class ResourceAlteration:
    resource_type: int
    resource_name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


NewTexts = Callable[[ClusterImage, StaticConfig, ResourceChanges], dict[str, str]]


def alter_configs(
    image: ClusterImage, static: StaticConfig, resources: Sequence[ResourceChanges], *, validate_only: bool = False
) -> ControllerResult[list[ResourceAlteration]]:
    """Each resource gets exactly the given settings; ``operation`` is ignored."""
    return _alter(image, static, resources, _replaced, validate_only)


def incremental_alter_configs(
    image: ClusterImage, static: StaticConfig, resources: Sequence[ResourceChanges], *, validate_only: bool = False
) -> ControllerResult[list[ResourceAlteration]]:
    return _alter(image, static, resources, _changed, validate_only)


def _alter(
    image: ClusterImage, static: StaticConfig, resources: Sequence[ResourceChanges], new_texts: NewTexts, validate_only: bool
) -> ControllerResult[list[ResourceAlteration]]:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    records: list[MetadataRecord] = []
    results: dict[tuple[int, str], ResourceAlteration] = {}
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        try:
            if counts[key] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the request names the resource twice")
            records += _alter_resource(image, static, resource, new_texts)
            results[key] = ResourceAlteration(*key)
        except ApiError as error:
            results[key] = ResourceAlteration(*key, error.code, error.message)
    records += _elections(image, static, records)
    return ControllerResult([] if validate_only else records, list(results.values()))


class ChangedTopicRules:
    """The settings that elections depend on, as they will be once these records are replayed."""

    def __init__(self, image: ClusterImage, static: StaticConfig, changes: Sequence[ConfigRecord]) -> None:
        self._image = image
        self._changes = changes
        dynamic = {
            **self._texts(ResourceType.BROKER, ALL_BROKERS),
            **self._texts(ResourceType.BROKER, str(static.node_id)),
        }
        self._defaults = {**inherit(TOPIC, static.texts), **inherit_leniently(TOPIC, dynamic)}

    def _texts(self, kind: ResourceType, name: str) -> dict[str, str]:
        texts = dict(self._image.configs_of(kind, name))
        for record in self._changes:
            if (record.resource_type, record.resource_name) == (kind, name):
                if record.value is None:
                    texts.pop(record.name, None)
                else:
                    texts[record.name] = record.value
        return texts

    def _values(self, topic: str) -> Mapping[str, Any]:
        return read_leniently(TOPIC, self._texts(ResourceType.TOPIC, topic), self._defaults)

    def min_insync_replicas(self, topic: str) -> int:
        return int(self._values(topic)["min.insync.replicas"])

    def allows_unclean_election(self, topic: str) -> bool:
        return bool(self._values(topic)["unclean.leader.election.enable"])

    def is_relaxed(self, topic: str) -> bool:
        return int(self._values(topic)["flush.messages"]) > 1


def _elections(image: ClusterImage, static: StaticConfig, records: Sequence[MetadataRecord]) -> Sequence[MetadataRecord]:
    """What the changes mean for leaders and eligible replicas. It is part of the same batch: with a smaller minimum, the high
    watermark moves on without those who were eligible by the larger one."""
    changes = [record for record in records if isinstance(record, ConfigRecord) and record.name in ELECTION_SETTINGS]
    if not changes:
        return ()
    topics = list(image.topics)
    if all(change.resource_type == ResourceType.TOPIC for change in changes):
        named = {change.resource_name for change in changes}
        topics = [topic for topic in topics if topic.name in named]
    return settings_changed(image, ChangedTopicRules(image, static, changes), topics).records


def _alter_resource(
    image: ClusterImage, static: StaticConfig, resource: ResourceChanges, new_texts: NewTexts
) -> list[MetadataRecord]:
    kind, resource_name = resource.resource_type, resource.resource_name
    _check_resource(image, kind, resource_name)
    names = Counter(change.name for change in resource.changes)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{twice[0]} is given twice")
    old = image.configs_of(kind, resource_name)
    new = new_texts(image, static, resource)
    # A setting that is removed need not be known: it may come from another release, and removing it sets nothing.
    named = {name for name in names if name in new}
    if kind == ResourceType.TOPIC:
        check_topic_texts(new, inherited_values(image, static), named)
    elif kind == ResourceType.GROUP:
        check_group_texts(new, static.texts, named)
    elif kind == ResourceType.CLIENT_METRICS:
        check_client_metrics_texts(new, named)
    else:
        check_broker_texts(new, static.texts, named)
        _check_same_on_all(image, resource_name, old, new)
        check_topics_under(image, static, resource_name, new)
    return [ConfigRecord(kind, resource_name, name, new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


def _check_same_on_all(image: ClusterImage, broker: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    if broker == ALL_BROKERS or sum(1 for _ in image.brokers) == 1:
        return
    for name in SAME_ON_ALL_BROKERS:
        if name in new and new[name] != old.get(name):
            reason = "because leaders are elected by it: set it for all of them, or on topics"
            message = f"{name} has to be the same on all brokers, {reason}"
            raise ApiError(ErrorCode.INVALID_CONFIG, message)


def _check_resource(image: ClusterImage, kind: int, name: str) -> None:
    if kind == ResourceType.TOPIC:
        if image.topic(name) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
    elif kind == ResourceType.BROKER:
        if name == ALL_BROKERS:
            return
        if not (name.isascii() and name.isdigit()):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name!r} is not the id of a broker")
        if int(name) not in image.brokers:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {name} is not registered")
    elif kind == ResourceType.GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a group has a name: there are no settings of all groups")
    elif kind == ResourceType.CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a subscription to client metrics has a name")
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")


def _replaced(image: ClusterImage, static: StaticConfig, resource: ResourceChanges) -> dict[str, str]:  # noqa: ARG001 - NewTexts
    return {change.name: _text(change) for change in resource.changes}


def _changed(image: ClusterImage, static: StaticConfig, resource: ResourceChanges) -> dict[str, str]:
    texts = dict(image.configs_of(resource.resource_type, resource.resource_name))
    for change in resource.changes:
        if change.operation == AlterOperation.SET:
            texts[change.name] = _text(change)
        elif change.operation == AlterOperation.DELETE:
            texts.pop(change.name, None)
        elif change.operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
            texts[change.name] = _combined(image, static, resource, change, texts.get(change.name))
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{change.name}: there is no operation {change.operation}")
    return texts


def _text(change: ConfigChange) -> str:
    if change.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{change.name}: null is not a value")
    return change.value


def _combined(
    image: ClusterImage, static: StaticConfig, resource: ResourceChanges, change: ConfigChange, current: str | None
) -> str:
    """Return the list with items added or removed. Adding an item twice or removing a missing one has no effect. A list that was
    not set starts from the value in force."""
    by_type = {ResourceType.TOPIC: TOPIC, ResourceType.GROUP: GROUP, ResourceType.CLIENT_METRICS: CLIENT_METRICS}
    definitions = by_type.get(ResourceType(resource.resource_type), BROKER)
    setting = definitions.settings.get(change.name)
    if setting is None or setting.type is not SettingType.LIST:
        operation = AlterOperation(change.operation).name
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{change.name}: {operation} is for lists, and this setting is not a list")
    if current is None:
        if resource.resource_type == ResourceType.TOPIC:
            current = describe_topic(image, static, resource.resource_name, (change.name,))[0].value
        else:
            current = static.texts.get(change.name) or show(setting.default)
    items = _items(current or "")
    given = _items(_text(change))
    if change.operation == AlterOperation.APPEND:
        items += [item for item in dict.fromkeys(given) if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def check_topic_texts(texts: Mapping[str, str], defaults: Mapping[str, Value], changed: Collection[str]) -> None:
    """Check all of a topic's settings. Those that are not in ``changed`` may come from another release and be unknown to this
    one."""
    known = {name: text for name, text in texts.items() if name in changed or name in TOPIC.settings}
    try:
        parse(TOPIC, known, defaults)
    except InvalidSetting as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_group_texts(texts: Mapping[str, str], static_texts: Mapping[str, str], changed: Collection[str]) -> None:
    """Check all of a group's settings. Those that are not in ``changed`` may come from another release and be unknown to this
    one."""
    known = {name: text for name, text in texts.items() if name in changed or name in GROUP.settings}
    try:
        parse(GROUP, known, inherit(GROUP, static_texts))
    except InvalidSetting as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_client_metrics_texts(texts: Mapping[str, str], changed: Collection[str]) -> None:
    """Check all settings of a subscription to client metrics; those that are not in ``changed`` may come from another release."""
    known = {name: text for name, text in texts.items() if name in changed or name in CLIENT_METRICS.settings}
    try:
        parse(CLIENT_METRICS, known)
    except InvalidSetting as error:
        # Kafka has this distinction.
        code = ErrorCode.INVALID_CONFIG if error.name == MATCH else ErrorCode.INVALID_REQUEST
        raise ApiError(code, str(error)) from error


def check_broker_texts(texts: Mapping[str, str], static_texts: Mapping[str, str], changed: Collection[str]) -> None:
    """Check all of a broker's dynamic settings. Each of ``changed`` must be one that can change."""
    try:
        for name in changed:
            setting = BROKER.find(name)
            if name not in DYNAMIC_BROKER_SETTINGS:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"{name} cannot be changed while the broker runs: set it in its configuration"
                )
            setting.read(texts[name])
        known = {name: text for name, text in texts.items() if name in DYNAMIC_BROKER_SETTINGS}
        parse(TOPIC, {}, {**inherit(TOPIC, static_texts), **inherit(TOPIC, known)})
    except InvalidSetting as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_topics_under(image: ClusterImage, static: StaticConfig, broker: str, texts: Mapping[str, str]) -> None:
    """Check that topics with settings of their own would still be valid if the broker (or all brokers) had these settings."""
    if broker not in (ALL_BROKERS, str(static.node_id)):
        return
    layers = {name: image.configs_of(ResourceType.BROKER, name) for name in (ALL_BROKERS, str(static.node_id))}
    layers[broker] = texts
    dynamic = {**layers[ALL_BROKERS], **layers[str(static.node_id)]}
    before = inherited_values(image, static)
    after = {**inherit(TOPIC, static.texts), **inherit_leniently(TOPIC, dynamic)}
    for topic in image.topics:
        own = image.configs_of(ResourceType.TOPIC, topic.name)
        if not own or _problem(own, before) is not None:
            continue  # The topic was invalid before, so this change is not to blame.
        problem = _problem(own, after)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"with this, topic {topic.name} would have {problem}")


def _problem(own: Mapping[str, str], defaults: Mapping[str, Value]) -> str | None:
    try:
        check_topic_texts(own, defaults, ())
    except ApiError as error:
        return error.message
    return None
