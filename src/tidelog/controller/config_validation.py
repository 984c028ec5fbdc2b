"""Whether settings may be as somebody wants them: known names, good values, and values that go together."""

from collections.abc import Collection, Mapping

from tidelog.config.broker import BROKER
from tidelog.config.definition import inherit, parse
from tidelog.config.topic import TOPIC
from tidelog.config.types import InvalidSetting, Value
from tidelog.controller.config_sources import DYNAMIC_BROKER_SETTINGS
from tidelog.controller.errors import ApiError
from tidelog.wire.errors import ErrorCode


def check_topic_texts(texts: Mapping[str, str], defaults: Mapping[str, Value], changed: Collection[str]) -> None:
    """All of a topic's settings. Those that are not among ``changed`` may be of another release and unknown to this one."""
    known = {name: text for name, text in texts.items() if name in changed or name in TOPIC.settings}
    try:
        parse(TOPIC, known, defaults)
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
