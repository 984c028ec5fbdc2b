"""The source of a setting's value, and the values that it hides: DescribeConfigs' sources and synonyms.

A topic or group has its own value if one was set; otherwise the value comes from a broker setting of another name (its synonym).
The value of a broker setting is the first of these that exists: set dynamically for this broker, set dynamically for all brokers,
from the configuration file, the default.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.broker import BROKER
from tidelog.config.client_metrics import CLIENT_METRICS
from tidelog.config.cluster import FOLLOWER_THROTTLED_RATE, LEADER_THROTTLED_RATE
from tidelog.config.definition import Definitions, Setting, inherit, inherit_leniently
from tidelog.config.groups import GROUP
from tidelog.config.topic import NOT_INHERITED_BY_INTERNAL_TOPICS, TOPIC
from tidelog.config.types import InvalidSetting, Password, SettingType, Value
from tidelog.controller.errors import ApiError
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import INTERNAL_TOPICS
from tidelog.wire.errors import ErrorCode

# The settings that can change while a broker runs: the rates of replication, and the defaults of topics. Only the first synonym
# can, as in Kafka, so that there is one way to say it.
_TOPIC_DEFAULTS = frozenset(setting.synonyms[0].name for setting in TOPIC.settings.values() if setting.synonyms)
DYNAMIC_BROKER_SETTINGS = _TOPIC_DEFAULTS | {LEADER_THROTTLED_RATE, FOLLOWER_THROTTLED_RATE}


class ConfigSource(IntEnum):
    """The sources of a value, with DescribeConfigs' numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class StaticConfig:
    """The settings that the answering broker was started with."""

    node_id: int
    texts: Mapping[str, str]


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    name: str
    value: str | None
    """None for a secret, and when there is no value."""
    read_only: bool
    source: ConfigSource
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    """The value in force comes first, followed by the values that it hides."""
    type: SettingType
    documentation: str


Layer = tuple[ConfigSource, Mapping[str, str]]


def inherited_values(image: ClusterImage, static: StaticConfig) -> dict[str, Value]:
    """The topic settings that result from this broker's settings; dynamic settings override those of its start."""
    dynamic = {
        **image.configs_of(ResourceType.BROKER, ALL_BROKERS),
        **image.configs_of(ResourceType.BROKER, str(static.node_id)),
    }
    return {**inherit(TOPIC, static.texts), **inherit_leniently(TOPIC, dynamic)}


def describe_topic(
    image: ClusterImage, static: StaticConfig, topic: str, names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """``names`` None means all settings. A name that is not a setting is left out, as in Kafka."""
    if image.topic(topic) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
    texts = image.configs_of(ResourceType.TOPIC, topic)
    return describe_topic_texts(image, static, texts, names, is_internal=topic in INTERNAL_TOPICS)


def describe_topic_texts(
    image: ClusterImage,
    static: StaticConfig,
    texts: Mapping[str, str],
    names: Collection[str] | None = None,
    *,
    is_internal: bool = False,
) -> list[DescribedConfig]:
    """Describe a topic that has these settings of its own."""
    layers = _layers(image, static)
    not_inherited = NOT_INHERITED_BY_INTERNAL_TOPICS if is_internal else frozenset()
    source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    return [
        _describe_own_setting(setting, texts, source, [] if setting.name in not_inherited else layers)
        for setting in _wanted(TOPIC, names)
    ]


def describe_group(
    image: ClusterImage, static: StaticConfig, group: str, names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """Describe a group. It need not exist: its settings may be made before it."""
    if not group:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a group has a name: there are no settings of all groups")
    layers = _layers(image, static)
    texts = image.configs_of(ResourceType.GROUP, group)
    return [_describe_own_setting(setting, texts, ConfigSource.GROUP_CONFIG, layers) for setting in _wanted(GROUP, names)]


def describe_client_metrics(
    image: ClusterImage, subscription: str, names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """Describe what was set for a subscription to client metrics, which is nothing if there is no such subscription."""
    if not subscription:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a subscription to client metrics has a name")
    texts = image.configs_of(ResourceType.CLIENT_METRICS, subscription)
    return [
        _describe_own_setting(setting, texts, ConfigSource.CLIENT_METRICS_CONFIG, [])
        for setting in _wanted(CLIENT_METRICS, names)
        if setting.name in texts
    ]


def describe_broker(
    image: ClusterImage, static: StaticConfig, broker: str, names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """Describe a broker by its id, or ALL_BROKERS: then only what was set for all of them."""
    layers = _layers(image, static)
    if broker == ALL_BROKERS:
        layers = [layer for layer in layers if layer[0] is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
        set_for_all = layers[0][1]
        return [_describe_broker_setting(setting, layers) for setting in _wanted(BROKER, names) if setting.name in set_for_all]
    if broker != str(static.node_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"broker {broker!r} was asked for, but this is broker {static.node_id}: ask that one"
        )
    return [_describe_broker_setting(setting, layers) for setting in _wanted(BROKER, names)]


def _layers(image: ClusterImage, static: StaticConfig) -> list[Layer]:
    return [
        (ConfigSource.DYNAMIC_BROKER_CONFIG, image.configs_of(ResourceType.BROKER, str(static.node_id))),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, image.configs_of(ResourceType.BROKER, ALL_BROKERS)),
        (ConfigSource.STATIC_BROKER_CONFIG, static.texts),
    ]


def _wanted(definitions: Definitions, names: Collection[str] | None) -> Iterator[Setting]:
    return (setting for name, setting in definitions.settings.items() if names is None or name in names)


def _describe_own_setting(
    setting: Setting, texts: Mapping[str, str], own_source: ConfigSource, layers: list[Layer]
) -> DescribedConfig:
    """Describe one setting of a topic or a group."""
    text = texts.get(setting.name)
    if text is None and not any(synonym.name in layer for _, layer in layers for synonym in setting.synonyms):
        return _DEFAULTS[setting.name]
    chain: list[ConfigSynonym] = []
    values: list[str | None] = []
    if text is not None:
        chain.append(ConfigSynonym(setting.name, _shown(setting, text), own_source))
    for source, layer in layers:
        for synonym in setting.synonyms:
            given = layer.get(synonym.name)
            if given is not None:
                chain.append(ConfigSynonym(synonym.name, _shown(BROKER.settings[synonym.name], given), source))
                # The value is in the topic's unit: log.retention.hours=1 is retention.ms=3600000.
                values.append(_in_topic_unit(setting, synonym.name, given))
    chain += _DEFAULTS[setting.name].synonyms
    values.append(_DEFAULTS[setting.name].value)
    if text is not None:
        values.insert(0, chain[0].value)
    return _described(setting, values[0], chain, read_only=False)


def _describe_default(setting: Setting) -> DescribedConfig:
    chain: list[ConfigSynonym] = []
    if setting.default is not None:
        name = setting.synonyms[0].name if setting.synonyms else setting.name
        chain.append(ConfigSynonym(name, show(setting.default), ConfigSource.DEFAULT_CONFIG))
    return _described(setting, show(setting.default), chain, read_only=False)


def _describe_broker_setting(setting: Setting, layers: list[Layer]) -> DescribedConfig:
    chain = [
        ConfigSynonym(setting.name, _shown(setting, layer[setting.name]), source)
        for source, layer in layers
        if setting.name in layer
    ]
    if setting.default is not None:
        chain.append(ConfigSynonym(setting.name, show(setting.default), ConfigSource.DEFAULT_CONFIG))
    value = chain[0].value if chain else None
    return _described(setting, value, chain, read_only=setting.name not in DYNAMIC_BROKER_SETTINGS)


def _described(setting: Setting, value: str | None, chain: list[ConfigSynonym], *, read_only: bool) -> DescribedConfig:
    is_sensitive = setting.type is SettingType.PASSWORD
    if is_sensitive:
        value = None
        chain = [synonym._replace(value=None) for synonym in chain]
    return DescribedConfig(
        name=setting.name,
        value=value,
        read_only=read_only,
        source=chain[0].source if chain else ConfigSource.DEFAULT_CONFIG,
        is_sensitive=is_sensitive,
        synonyms=tuple(chain),
        type=setting.type,
        documentation=setting.documentation,
    )


def _shown(setting: Setting, text: str) -> str | None:
    """The value as it was parsed, or the text itself when this release cannot parse it (a later release may have set it)."""
    try:
        return show(setting.read(text))
    except InvalidSetting:
        return text


def _in_topic_unit(setting: Setting, synonym: str, text: str) -> str | None:
    try:
        return show(inherit(Definitions((setting,)), {synonym: text})[setting.name])
    except InvalidSetting:
        return text


def show(value: Value) -> str | None:
    """Format a value as Kafka prints it."""
    if value is None or isinstance(value, Password):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return repr(value).upper().replace("E+", "E")
    return str(value)


# This is made once, because nearly all settings of nearly all topics are defaults.
_DEFAULTS = {
    setting.name: _describe_default(setting)
    for definitions in (TOPIC, GROUP, CLIENT_METRICS)
    for setting in definitions.settings.values()
}
