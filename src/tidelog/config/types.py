"""The types a setting can have, and how its text becomes a value.

Text comes from outside (a file, a command line, a client's request), so every reader checks it and says what it would have
accepted. The rules are Kafka's: spaces around a value are ignored, booleans may have any case, lists are separated by commas, INT
and LONG have 32 and 64 bits. Numbers are plain ASCII decimals; what only Python accepts (``1_000``, digits of other scripts,
``nan``) is refused, because the same text must mean the same in both.
"""

import math
import re
from collections.abc import Callable
from enum import IntEnum

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

# More digits than any LONG has; longer text is refused before Python parses it.
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_DOUBLE = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?")


class SettingType(IntEnum):
    """The types of DescribeConfigs, with its numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Password:
    """A secret that stays hidden in log lines, tracebacks and errors."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def reveal(self) -> str:
        return self._secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self._secret == other._secret

    def __hash__(self) -> int:
        return hash(self._secret)

    def __repr__(self) -> str:
        return "[hidden]"


Value = bool | int | float | str | tuple[str, ...] | Password | None


class InvalidSetting(ValueError):
    """A setting that cannot be accepted: its name, the given value (hidden if it is secret) and the reason."""

    def __init__(self, name: str, value: str | None, reason: str) -> None:
        super().__init__(f"{name}: {reason}" if value is None else f"{name}={value}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


class Unreadable(ValueError):
    """Text that does not fit the type; the message says what the type accepts. It becomes ``InvalidSetting`` once the name is
    known."""


def read_boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise Unreadable("expected true or false")
    return lowered == "true"


def read_int(text: str) -> int:
    return _read_integer(text, INT_MIN, INT_MAX)


def read_long(text: str) -> int:
    return _read_integer(text, LONG_MIN, LONG_MAX)


def read_double(text: str) -> float:
    stripped = text.strip()
    number = float(stripped) if _DOUBLE.fullmatch(stripped) else math.inf
    if not math.isfinite(number):
        raise Unreadable("expected a finite decimal number such as 0.5")
    return number


def read_string(text: str) -> str:
    return text.strip()


def read_list(text: str) -> tuple[str, ...]:
    if not text.strip():
        return ()
    items = tuple(item.strip() for item in text.split(","))
    if "" in items:
        raise Unreadable("expected items separated by single commas")
    if len(set(items)) != len(items):
        raise Unreadable("expected each item once")
    return items


def read_password(text: str) -> Password:
    return Password(text)


def _read_integer(text: str, low: int, high: int) -> int:
    stripped = text.strip()
    if not _INTEGER.fullmatch(stripped):
        raise Unreadable("expected a whole number")
    number = int(stripped)
    if not low <= number <= high:
        raise Unreadable(f"expected a whole number from {low} to {high}")
    return number


READERS: dict[SettingType, Callable[[str], Value]] = {
    SettingType.BOOLEAN: read_boolean,
    SettingType.STRING: read_string,
    SettingType.INT: read_int,
    SettingType.LONG: read_long,
    SettingType.DOUBLE: read_double,
    SettingType.LIST: read_list,
    SettingType.PASSWORD: read_password,
}
