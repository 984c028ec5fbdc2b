"""Hints such as "to see them: tidelog dlq list" must work as they are printed, so they repeat the cluster that the user named.

What names the cluster (``--profile``, ``-b``, ``-X``) is remembered while the command line is read, and ``completed`` adds it to
the commands in a line that is about to be printed. This happens at the two places where lines for people leave (``output.say``
and ``errors``), because hints come from everywhere, even from libraries, and one that is forgotten talks to the wrong broker.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

# The commands that talk to a cluster: groups of commands, of which a hint names one, and commands by themselves.
_GROUPS = "topics|groups|dlq|transactions|configs|quotas|cluster|queues|quorum"
_COMMANDS = "produce|consume|bench|reassign|drain"
_HINT = re.compile(rf"\btidelog ((?:(?:{_GROUPS}) [a-z][a-z-]*)|(?:{_COMMANDS}))\b(?! (?:-b|--help)\b)")
_SECRET = re.compile(r"password|secret|token|key\.pem|sasl\.jaas", re.IGNORECASE)


@dataclass(slots=True)
class _Named:
    """The words that named the cluster: before the command, and after it."""

    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


_named: ContextVar[_Named | None] = ContextVar("named", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Forget what an earlier command named."""
    token = _named.set(_Named())
    try:
        yield
    finally:
        _named.reset(token)


def remember_profile(name: str) -> None:
    if (named := _named.get()) is not None:
        named.before = ["--profile", name]


def remember(option: str, value: str) -> None:
    """``value`` was given on the command line. A secret is left out: hints end up in logs and in screenshots."""
    if (named := _named.get()) is not None:
        name, separator, _ = value.partition("=")
        is_secret = bool(separator) and is_secret_name(name)
        named.after += [option, f"{name}=..." if is_secret else value]


def is_secret_name(name: str) -> bool:
    return _SECRET.search(name) is not None


def completed(line: str) -> str:
    """The line with the cluster added to the commands in it."""
    named = _named.get()
    if named is None or not (named.before or named.after):
        return line
    before, after = (" ".join(shlex.quote(word) for word in words) for words in (named.before, named.after))
    return _HINT.sub(lambda found: " ".join(part for part in ("tidelog", before, found[1], after) if part), line)
