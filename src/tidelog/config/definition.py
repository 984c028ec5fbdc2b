"""The definition of a setting, and how a set of definitions turns text into values.

A setting is defined once: name, type, default, what is allowed, documentation, and for a topic setting the broker settings that
give its default (its synonyms). The broker settings are derived from it, not written down a second time.

``parse`` is the entry point. It refuses an unknown name and suggests the one that was probably meant, reads and checks each
value, fills in defaults, and then runs the checks that need more than one value. It either returns a complete dictionary or
raises. ``read_leniently`` is only for values that were accepted earlier and must not stop a broker now.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

from tidelog.config.types import READERS, InvalidSetting, SettingType, Unreadable, Value

HOUR_MS = 3_600_000
MINUTE_MS = 60_000

_UNIT_NAMES = {HOUR_MS: "hours", MINUTE_MS: "minutes"}


class Allowed(Protocol):
    def accepts(self, value: Value) -> bool: ...

    def describe(self) -> str:
        """Completes the sentence "expected ..."."""
        ...


@dataclass(frozen=True, slots=True)
class AtLeast:
    low: int

    def accepts(self, value: Value) -> bool:
        return isinstance(value, int | float) and value >= self.low

    def describe(self) -> str:
        return f"at least {self.low}"


@dataclass(frozen=True, slots=True)
class Between:
    low: int
    high: int

    def accepts(self, value: Value) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def describe(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    choices: tuple[str, ...]

    def accepts(self, value: Value) -> bool:
        return value in self.choices

    def describe(self) -> str:
        return f"one of {', '.join(self.choices)}"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A list whose items are all among the choices; it may be empty."""

    choices: tuple[str, ...]

    def accepts(self, value: Value) -> bool:
        return isinstance(value, tuple) and all(item in self.choices for item in value)

    def describe(self) -> str:
        return f"a list of any of {', '.join(self.choices)}"


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that gives a topic setting its default. ``unit_ms`` is above 1 where the broker counts in larger units."""

    name: str
    unit_ms: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting without a value unless it is set has the default None. ``synonyms`` are in order of precedence."""

    name: str
    type: SettingType
    default: Value
    documentation: str
    allowed: Allowed | None = None
    synonyms: tuple[Synonym, ...] = ()

    def read(self, text: str) -> Value:
        try:
            value = READERS[self.type](text)
        except Unreadable as error:
            raise self._invalid(text, str(error)) from None
        if self.allowed is not None and not self.allowed.accepts(value):
            raise self._invalid(text, f"expected {self.allowed.describe()}")
        return value

    def _invalid(self, text: str, reason: str) -> InvalidSetting:
        shown = "[hidden]" if self.type is SettingType.PASSWORD else text
        return InvalidSetting(self.name, shown, reason)


Check = Callable[[Mapping[str, Value]], None]


class Definitions:
    """Settings by name, and the checks over several of them (each raises ``InvalidSetting``)."""

    __slots__ = ("checks", "settings")

    def __init__(self, settings: Iterable[Setting], checks: Iterable[Check] = ()) -> None:
        self.settings: dict[str, Setting] = {}
        for setting in settings:
            assert setting.name not in self.settings, f"{setting.name} is defined twice"
            self.settings[setting.name] = setting
        self.checks = tuple(checks)

    def find(self, name: str) -> Setting:
        setting = self.settings.get(name)
        if setting is None:
            nearest = get_close_matches(name, self.settings, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise InvalidSetting(name, None, f"there is no such setting{hint}")
        return setting


def parse(definitions: Definitions, texts: Mapping[str, str], defaults: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """Every setting's value: from ``texts``, else from ``defaults``, else its own default."""
    values = {setting.name: setting.default for setting in definitions.settings.values()}
    values.update(defaults or {})
    for name, text in texts.items():
        values[name] = definitions.find(name).read(text)
    for check in definitions.checks:
        check(values)
    return values


def read_leniently(
    definitions: Definitions, texts: Mapping[str, str], defaults: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """Like ``parse``, for texts that were accepted earlier, perhaps by another release or by Kafka: unknown names and unreadable
    values count as not set, and the checks over several values do not run."""
    values = {setting.name: setting.default for setting in definitions.settings.values()}
    values.update(defaults or {})
    for name, text in texts.items():
        setting = definitions.settings.get(name)
        if setting is not None:
            with suppress(InvalidSetting):
                values[name] = setting.read(text)
    return values


def broker_settings(definitions: Definitions) -> list[Setting]:
    """The broker settings that these topic settings' synonyms name. Only the first of several synonyms carries the default."""
    return [
        _broker_setting(setting, synonym, is_first=position == 0)
        for setting in definitions.settings.values()
        for position, synonym in enumerate(setting.synonyms)
    ]


def inherit(definitions: Definitions, broker_texts: Mapping[str, str]) -> dict[str, Value]:
    """The topic defaults that a broker's settings give: for each setting the first of its synonyms that is set."""
    inherited: dict[str, Value] = {}
    for setting in definitions.settings.values():
        for synonym in setting.synonyms:
            text = broker_texts.get(synonym.name)
            if text is not None:
                value = _broker_setting(setting, synonym, is_first=True).read(text)
                inherited[setting.name] = _in_topic_unit(value, synonym)
                break
    return inherited


def inherit_leniently(definitions: Definitions, broker_texts: Mapping[str, str]) -> dict[str, Value]:
    """Like ``inherit``, but what cannot be read counts as not set."""
    readable: dict[str, str] = {}
    for name, text in broker_texts.items():
        with suppress(InvalidSetting):
            inherit(definitions, {name: text})
            readable[name] = text
    return inherit(definitions, readable)


def _broker_setting(setting: Setting, synonym: Synonym, *, is_first: bool) -> Setting:
    is_converted = synonym.unit_ms != 1
    unit = f" in {_UNIT_NAMES[synonym.unit_ms]}" if is_converted else ""
    return Setting(
        name=synonym.name,
        type=SettingType.INT if is_converted else setting.type,
        default=setting.default if is_first and not is_converted else None,
        documentation=f"The default of the topic setting {setting.name}{unit}. {setting.documentation}",
        allowed=_in_larger_unit(setting.allowed) if is_converted else setting.allowed,
    )


def _in_larger_unit(allowed: Allowed | None) -> Allowed | None:
    """The lower bounds of times are -1 (unlimited), 0 and 1, which are the same in hours and in milliseconds."""
    assert allowed is None or (isinstance(allowed, AtLeast) and -1 <= allowed.low <= 1)
    return allowed


def _in_topic_unit(value: Value, synonym: Synonym) -> Value:
    """Negative times mean "unlimited" in every unit."""
    if synonym.unit_ms == 1 or not isinstance(value, int) or value < 0:
        return value
    return value * synonym.unit_ms
