"""The settings that our own connection understands. Any other setting, and any security, is left to librdkafka.

The names are librdkafka's, and for the few that differ also Kafka's own, which users of the stock Spark connector have.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument

# The limits of the settings: no more bytes than a response may have, and no pause that looks like a hang.
_FETCH_BYTES_RANGE = (1024, 64 << 20)
_WAIT_MS_RANGE = (0, 60_000)
_TIMEOUT_MS_RANGE = (100, 600_000)


class OwnSettings(NamedTuple):
    client_id: str = "tidelog-fetch"
    connect_timeout_ms: int = 5_000
    timeout_ms: int = 60_000
    """The time-out of a request, and of waiting until there is something new to read."""
    fetch_bytes_max: int = 4 << 20
    """The maximum for one response: enough rows for an Arrow batch, and little memory."""
    wait_ms_max: int = 500
    checks_crcs: bool = True


# By name of the setting: the field, and the minimum and maximum value.
_NUMBERS: Mapping[str, tuple[str, tuple[int, int]]] = {
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", _TIMEOUT_MS_RANGE),
    "socket.timeout.ms": ("timeout_ms", _TIMEOUT_MS_RANGE),
    "request.timeout.ms": ("timeout_ms", _TIMEOUT_MS_RANGE),
    "max.partition.fetch.bytes": ("fetch_bytes_max", _FETCH_BYTES_RANGE),
    "fetch.message.max.bytes": ("fetch_bytes_max", _FETCH_BYTES_RANGE),
    "fetch.wait.max.ms": ("wait_ms_max", _WAIT_MS_RANGE),
    "fetch.max.wait.ms": ("wait_ms_max", _WAIT_MS_RANGE),
}
_BOOLEANS = {"true": True, "false": False}
_KAFKA_NAMES: Mapping[str, str] = {"request.timeout.ms": "socket.timeout.ms", "fetch.max.wait.ms": "fetch.wait.max.ms"}


def own_settings(settings: Mapping[str, str]) -> OwnSettings | None:
    """The settings for our own connection; None if they are beyond it. InvalidArgument for an invalid value."""
    found: dict[str, str | int | bool] = {}
    for name, value in settings.items():
        if name == "client.id":
            found["client_id"] = value
        elif name == "check.crcs":
            if value.lower() not in _BOOLEANS:
                raise InvalidArgument(f"{name} is true or false: not {value!r}")
            found["checks_crcs"] = _BOOLEANS[value.lower()]
        elif name in _NUMBERS:
            field, limits = _NUMBERS[name]
            found[field] = _number(name, value, limits)
        elif name != "security.protocol" or value.upper() != "PLAINTEXT":
            return None
    return OwnSettings(**found)  # type: ignore[arg-type]  # each field has its type by the tables above


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with Kafka's own names replaced by librdkafka's."""
    return {_KAFKA_NAMES.get(name, name): value for name, value in settings.items()}


def _number(name: str, value: str, limits: tuple[int, int]) -> int:
    if not (value.isascii() and value.isdigit() and limits[0] <= int(value) <= limits[1]):
        raise InvalidArgument(f"{name} is a number from {limits[0]} to {limits[1]}: not {value!r}")
    return int(value)
