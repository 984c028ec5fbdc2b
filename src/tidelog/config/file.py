"""A configuration file: TOML with Kafka's names.

    "log.retention.ms" = 600000            # a name in quotes, or

    [log.retention]                        # tables, whose names are joined with dots
    ms = 600000
    [log.segment]
    bytes = 16777216

Values become the text that Kafka's own files would have, so that one parser reads and checks them all: numbers and booleans
plainly, lists joined with commas. Names are not checked here.

In Kafka one setting's name may be the beginning of another's (such as ``log.cleaner`` and ``log.cleaner.threads``). TOML cannot
express such a pair as tables, but it can with quoted names.
"""

import tomllib
from collections.abc import Iterator

from tidelog.config.types import InvalidSetting


class UnreadableFile(ValueError):
    """The file does not hold what it should; the message names it and, for TOML, the line."""


def read_toml(text: str, path: str) -> dict[str, str]:
    """The settings of a file by name. ``path`` is for messages only."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnreadableFile(f"{path} is not valid TOML: {error}") from None
    settings: dict[str, str] = {}
    for name, value in _flatten(document, ""):
        if name in settings:
            raise InvalidSetting(name, None, f"{path} sets it twice, in quotes and as a table")
        settings[name] = text_of(name, value)
    return settings


def _flatten(table: dict[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def text_of(name: str, value: object) -> str:
    """A value as it would be written in one of Kafka's own files."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return ",".join(text_of(name, item) for item in value)
    raise InvalidSetting(name, None, "expected a string, a number, true or false, or a list of these")
