"""Settings of a subscription to client metrics (KIP-714), under Kafka's names.

A subscription asks the clients that match all of its patterns for the metrics whose names begin with one of its prefixes. Without
patterns it asks every client; the prefix ``*`` asks for every metric.
"""

from collections.abc import Callable, Iterable, Mapping

from tidelog.config.definition import Between, Definitions, Setting
from tidelog.config.regular_expressions import InvalidExpression, full_matcher
from tidelog.config.types import InvalidSetting, SettingType, Value

METRICS = "metrics"
PUSH_INTERVAL_MS = "interval.ms"
MATCH = "match"

ALL_METRICS = "*"
PUSH_INTERVAL_MS_DEFAULT = 300_000

# What a pattern may be about. Kafka also has client_source_port, which is refused here: it says nothing about a client.
CLIENT_ATTRIBUTES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
)

Matchers = dict[str, Callable[[str], bool]]


def read_match(patterns: Iterable[str]) -> Matchers:
    """Read ``attribute=expression``, each. Raises InvalidSetting."""
    matchers: Matchers = {}
    for pattern in patterns:
        attribute, separator, expression = (part.strip() for part in pattern.partition("="))
        if not separator or not expression or attribute not in CLIENT_ATTRIBUTES:
            reason = f"expected attribute=expression, with an attribute of {', '.join(CLIENT_ATTRIBUTES)}"
            raise InvalidSetting(MATCH, pattern, reason)
        try:
            matchers[attribute] = full_matcher(expression)
        except InvalidExpression as error:
            raise InvalidSetting(MATCH, pattern, f"not a valid regular expression: {error}") from None
    return matchers


def _check_match(values: Mapping[str, Value]) -> None:
    patterns = values[MATCH]
    assert isinstance(patterns, tuple)
    read_match(patterns)


CLIENT_METRICS = Definitions(
    (
        Setting(METRICS, SettingType.LIST, (), "The prefixes of the names of the metrics that clients push; * stands for all."),
        Setting(
            PUSH_INTERVAL_MS,
            SettingType.INT,
            PUSH_INTERVAL_MS_DEFAULT,
            "How often a client pushes.",
            Between(100, 3_600_000),
        ),
        Setting(MATCH, SettingType.LIST, (), "Which clients push: a list of attribute=expression, which must all match."),
    ),
    (_check_match,),
)
