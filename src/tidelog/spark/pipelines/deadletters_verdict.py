"""Which dead letters are worth a replay: one rule, from what their stories tell and nothing else.

An error is judged as a whole (one dead-letter topic, one class, one message with its numbers folded), in this order:

1. **foreign**: no story, or one of another topic. The tools never replay those.
2. **fix**: half of its letters or more were replayed before and came back: the same again would be no different.
3. **replay**: the class says that it passes by itself (time-outs, lost connections, ...), and it has been quiet for a while.
   **wait**: it has not: what caused it may still be there.
4. **replay**: a newer version of the application has written letters since, none of them of this error: it may be mended.
5. **fix**: anything else fails the same way again. Mend the application, or the data, then replay.

Whether a key succeeded later, no story can tell.
"""

import re
import shlex
from datetime import UTC, datetime
from typing import NamedTuple

REPLAY, WAIT, FIX, FOREIGN = "replay", "wait", "fix", "foreign"

# Parts of class names of errors that pass by themselves, in Python, its drivers and Java.
_TRANSIENT = re.compile(
    r"timeout|timedout|connection(?!string)|unavailable|toomanyrequests|throttl|ratelimit|temporar|transient|retr(?:y|ies|iable)"
    r"|deadlock|locktimeout|serializationfailure|brokenpipe|interrupted|unreachable|gateway|eagain|resourceexhausted|overload"
)
_SCALE = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


class Version(NamedTuple):
    """Of the application, as letters of one dead-letter topic name it."""

    name: str
    first_ms: int
    last_ms: int


class Facts(NamedTuple):
    """What is known of an error, of its letters that wait; ``versions`` of all."""

    topic: str
    exception_class: str | None
    waiting: int
    replayable: int
    """Of these, how many have a story that belongs to their topic."""
    came_back: int
    """Of these, how many were replayed before."""
    first_failure_ms: int
    last_failure_ms: int
    versions: tuple[str, ...]


class Verdict(NamedTuple):
    kind: str
    reason: str


def judge(facts: Facts, newest: Version | None, now_ms: int, quiet_ms: int) -> Verdict:
    """``newest`` is the version that appeared last in the letters of this topic."""
    if facts.exception_class is None or not facts.replayable:
        return Verdict(FOREIGN, "without a story that belongs to this topic: the tools do not replay what others wrote there")
    if facts.came_back * 2 >= facts.waiting:
        count = f"{facts.came_back:,} of {facts.waiting:,}" if facts.waiting > 1 else "this letter"
        return Verdict(FIX, f"{count} came back after a replay: mend the cause first")
    last = f"the last failure was {age(now_ms - facts.last_failure_ms)} ago"
    if is_transient(facts.exception_class):
        if now_ms - facts.last_failure_ms >= quiet_ms:
            return Verdict(REPLAY, f"this kind of error passes by itself, and it is quiet: {last}")
        return Verdict(WAIT, f"this kind of error passes by itself, but {last}: wait until it is quiet")
    if newest and facts.versions and newest.name not in facts.versions and newest.last_ms > facts.last_failure_ms:
        return Verdict(REPLAY, f"not seen since version {newest.name} runs: it may be mended there ({last})")
    return Verdict(FIX, f"fails the same way each time: mend the application or the data, then replay ({last})")


def is_transient(exception_class: str) -> bool:
    """By the last part of the name: ``requests.exceptions.ReadTimeout``."""
    return bool(_TRANSIENT.search(exception_class.rpartition(".")[2].replace("_", "").lower()))


def replay_command(facts: Facts, bootstrap: str | None) -> str | None:
    """For a shell; None where the class cannot be typed. Of letters that come later it takes none."""
    first_ms, end_ms = replay_bounds(facts.first_failure_ms, facts.last_failure_ms)
    name = facts.exception_class
    if name is None or not name or not name.isprintable():
        return None
    words = ["tidelog", "dlq", "replay", facts.topic, f"--error={name}"]
    words += ["--since", _moment(first_ms), "--until", _moment(end_ms)]
    return shlex.join(words + (["--bootstrap", bootstrap] if bootstrap else []))


def replay_bounds(first_failure_ms: int, last_failure_ms: int) -> tuple[int, int]:
    """From and before, in whole seconds: a time that is typed has no more."""
    return first_failure_ms - first_failure_ms % 1000, last_failure_ms - last_failure_ms % 1000 + 1000


def show_command(topic: str, partition: int, offset: int, bootstrap: str | None) -> str:
    words = ["tidelog", "dlq", "show", topic, f"{partition}:{offset}"]
    return shlex.join(words + (["--bootstrap", bootstrap] if bootstrap else []))


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(milliseconds: int) -> str:
    """In the two greatest units."""
    left = max(milliseconds, 0)
    parts: list[str] = []
    for size, unit in _SCALE:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"
