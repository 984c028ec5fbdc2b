"""Settings that a single group may have of its own (KIP-848), under Kafka's names. What is not set for a group is the broker's
setting of that name with ``group.`` in front. They concern groups of the consumer protocol; members of classic groups bring their
own time-outs."""

from collections.abc import Mapping

from tidelog.config.definition import AtLeast, Definitions, Setting, Synonym
from tidelog.config.groups import CONSUMER_GROUP_SETTINGS
from tidelog.config.types import InvalidSetting, Value

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"

_BROKER_PREFIX = "group."


def broker_setting_of(name: str) -> str:
    return _BROKER_PREFIX + name


def _check_heartbeats(values: Mapping[str, Value]) -> None:
    session_ms, heartbeat_ms = values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL]
    assert isinstance(session_ms, int)
    assert isinstance(heartbeat_ms, int)
    if heartbeat_ms >= session_ms:
        raise InvalidSetting(HEARTBEAT_INTERVAL, str(heartbeat_ms), f"expected less than {SESSION_TIMEOUT}, {session_ms}")


def _of_a_group(name: str) -> Setting:
    (broker_setting,) = (setting for setting in CONSUMER_GROUP_SETTINGS if setting.name == broker_setting_of(name))
    synonyms = (Synonym(broker_setting.name),)
    return Setting(name, broker_setting.type, broker_setting.default, broker_setting.documentation, AtLeast(1), synonyms)


GROUP = Definitions((_of_a_group(SESSION_TIMEOUT), _of_a_group(HEARTBEAT_INTERVAL)), (_check_heartbeats,))
