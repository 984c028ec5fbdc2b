"""Whether settings may be as somebody wants them: known names, good values, and values that go together."""

from collections.abc import Collection, Mapping

from tidelog.config.broker import BROKER
from tidelog.config.definition import inherit, inherit_leniently, parse
from tidelog.config.groups import GROUP
from tidelog.config.topic import TOPIC
from tidelog.config.types import InvalidSetting, Value
from tidelog.controller.config_sources import DYNAMIC_BROKER_SETTINGS, StaticConfig, inherited_values
from tidelog.controller.errors import ApiError
from tidelog.metadata.configs import ALL_BROKERS, ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode


def check_topic_texts(texts: Mapping[str, str], defaults: Mapping[str, Value], changed: Collection[str]) -> None:
    """All of a topic's settings. Those that are not among ``changed`` may be of another release and unknown to this one."""
    known = {name: text for name, text in texts.items() if name in changed or name in TOPIC.settings}
    try:
        parse(TOPIC, known, defaults)
    except InvalidSetting as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_group_texts(texts: Mapping[str, str], static_texts: Mapping[str, str], changed: Collection[str]) -> None:
    """All of a group's settings. Those that are not among ``changed`` may be of another release and unknown to this one."""
    known = {name: text for name, text in texts.items() if name in changed or name in GROUP.settings}
    try:
        parse(GROUP, known, inherit(GROUP, static_texts))
    except InvalidSetting as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error


def check_broker_texts(texts: Mapping[str, str], static_texts: Mapping[str, str], changed: Collection[str]) -> None:
    """All of a broker's dynamic settings; each of ``changed`` must be one that can change."""
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
    """Would the topics that have settings of their own still make sense if the broker (or all of them) had these?"""
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
            continue  # It made no sense before, so it is not this change that is wrong.
        problem = _problem(own, after)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"with this, topic {topic.name} would have {problem}")


def _problem(own: Mapping[str, str], defaults: Mapping[str, Value]) -> str | None:
    try:
        check_topic_texts(own, defaults, ())
    except ApiError as error:
        return error.message
    return None
