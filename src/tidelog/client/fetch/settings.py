"""The settings that our own connection knows; any other one, and any security, is for librdkafka.

Names are librdkafka's, and Kafka's own for the few that differ: users of the stock Spark connector bring those.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument

# How far a setting may go: no more than what one answer may take, and no pause that looks like a hang.
_FETCH_BYTES_RANGE = (1024, 64 << 20)
_WAIT_MS_RANGE = (0, 60_000)
_TIMEOUT_MS_RANGE = (100, 600_000)


class OwnSettings(NamedTuple):
    client_id: str = "tidelog-fetch"
    connect_timeout_ms: int = 5_000
    timeout_ms: int = 60_000
    """Of a request, and of waiting for anything new to read."""
    fetch_bytes_max: int = 4 << 20
    """Of one answer: enough rows for an Arrow batch, and what is held of it at a time stays small."""
    wait_ms_max: int = 500
    checks_crcs: bool = True


# Name in the settings: field, and least and greatest value.
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
    """None when they are beyond our own connection. InvalidArgument for a value that is none of the setting's."""
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
    """With Kafka's own names in librdkafka's words."""
    return {_KAFKA_NAMES.get(name, name): value for name, value in settings.items()}


def _number(name: str, value: str, limits: tuple[int, int]) -> int:
    if not (value.isascii() and value.isdigit() and limits[0] <= int(value) <= limits[1]):
        raise InvalidArgument(f"{name} is a number from {limits[0]} to {limits[1]}: not {value!r}")
    return int(value)
