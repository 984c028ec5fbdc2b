"""Dead letters as tables, stories and JSON."""

import base64
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tidelog.cli.groups_text import duration
from tidelog.cli.output import count_of, format_bytes, say, show_json, show_table
from tidelog.cli.transactions_text import time_text
from tidelog.deadletters.dead_letter import AGES, DeadLetter, Depth, LetterCount
from tidelog.deadletters.dead_letters import Shown
from tidelog.deadletters.letter import cut_end
from tidelog.deadletters.replay import ReplayResult

CELL_BYTES_MAX = 60
VALUE_BYTES_MAX = 2000
_NONE = "-"


def show_counts(console: Console, counts: Sequence[LetterCount], now_ms: int, as_json: bool) -> None:
    if as_json:
        for count in counts:
            document: dict[str, object] = {**count._asdict(), "by_age": dict(zip(_age_names(), count.by_age, strict=True))}
            show_json(document)
        return
    rows = [
        (count.topic, count.group, count.error, count.letters, *count.by_age, _age(count.oldest_ms, now_ms)) for count in counts
    ]
    ages = [f"< {name}" if limit is not None else name.upper() for name, limit in AGES]
    show_table(console, ("TOPIC", "GROUP", "ERROR", "LETTERS", *ages, "OLDEST"), rows)


def show_letters(console: Console, letters: Sequence[DeadLetter], now_ms: int) -> None:
    rows = [
        (
            f"{dead.partition}:{dead.offset}",
            _age(dead.failed_ms, now_ms),
            dead.letter.attempts if dead.letter else _NONE,
            _cell(dead.key),
            dead.error,
            cut_end(dead.letter.exception_message, CELL_BYTES_MAX) if dead.letter else "",
        )
        for dead in letters
    ]
    show_table(console, ("PLACE", "FAILED AGO", "ATTEMPTS", "KEY", "ERROR", "MESSAGE"), rows)


def letter_document(dead: DeadLetter) -> dict[str, object]:
    """All of it. What is not UTF-8 is under a name of its own, in base64, as ``tidelog consume --format json`` has it."""
    document: dict[str, object] = {
        "topic": dead.topic,
        "partition": dead.partition,
        "offset": dead.offset,
        "timestamp": dead.timestamp_ms,
        **_bytes_field("key", dead.key),
        **_bytes_field("value", dead.value),
        "headers": [
            [name, None if value is None else value.decode("utf-8", "backslashreplace")] for name, value in dead.original_headers
        ],
        "story": dead.letter._asdict() if dead.letter else None,
    }
    return document


def show_letter(console: Console, shown: Shown, now_ms: int, as_json: bool) -> None:
    dead, mark = shown
    if as_json:
        show_json({**letter_document(dead), "mark": mark._asdict() if mark else None})
        return
    letter = dead.letter
    say(console, f"{dead.topic} {dead.partition}:{dead.offset}", style="bold")
    if letter is None:
        say(console, "It has no story: no worker of Tidelog's wrote it. It is counted, but it cannot be replayed.")
    else:
        fields = [
            ("from", f"{letter.topic} {letter.partition}:{letter.offset}, sent {_moment(letter.timestamp_ms, now_ms)}"),
            ("group", letter.group),
            ("attempts", f"{letter.attempts}{f', replayed {letter.replays} times before' if letter.replays else ''}"),
            ("first failed", _moment(letter.first_failure_ms, now_ms)),
            ("last failed", _moment(letter.last_failure_ms, now_ms)),
            ("version", letter.application_version or _NONE),
            ("error", f"{letter.exception_class}: {letter.exception_message}"),
        ]
        for name, text in fields:
            say(console, f"  {name:<13}{text}")
        for line in letter.traceback.splitlines():
            say(console, f"    {line}")
    _show_message(console, dead)
    say(console, f"  {'state':<13}{_state(shown, now_ms)}")


def show_result(console: Console, result: ReplayResult, verb: str, is_dry_run: bool, as_json: bool) -> None:
    if as_json:
        show_json({**result._asdict(), "dry_run": is_dry_run})
        return
    places = ", ".join(f"{count:,} to {topic}" for topic, count in result.targets.items())
    what = f"{count_of(result.letters, 'letter')}{f' ({places})' if places else ''}"
    before = f" {count_of(result.done_before, 'letter')} of the topic had been replayed or discarded before."
    if result.letters:
        say(console, f"{f'Would have {verb}' if is_dry_run else verb.capitalize()} {what}.{before if result.done_before else ''}")
    else:
        fits = "fits" if result.not_fitting else "waits"
        say(console, f"Nothing was {verb}: no letter {fits}.{before} To see what waits: tidelog dlq list {result.topic}")
    if result.foreign:
        say(
            console,
            f"{count_of(result.foreign, 'letter')} left alone: without a story of this topic, so there is no telling where to. "
            f"To look: tidelog dlq list {result.topic} --letters",
        )


def show_depths(console: Console, depths: Sequence[Depth], now_ms: int, as_json: bool) -> None:
    if as_json:
        for depth in depths:
            show_json(depth._asdict())
        return
    rows = [
        (depth.topic, f"at most {depth.letters:,}" if depth.is_estimate else depth.letters, _age(depth.oldest_ms, now_ms))
        for depth in depths
    ]
    show_table(console, ("TOPIC", "LETTERS", "OLDEST"), rows)


def _show_message(console: Console, dead: DeadLetter) -> None:
    say(console, f"  {'key':<13}{_cell(dead.key)}")
    for name, value in dead.original_headers:
        say(console, f"  {'header':<13}{name}: {_cell(value)}")
    value = dead.value
    size = "" if value is None else f"{format_bytes(len(value))}"
    say(console, f"  {'value':<13}{size if value is not None else 'null'}")
    if value is not None:
        say(console, f"    {cut_end(value[: VALUE_BYTES_MAX + 1].decode('utf-8', 'backslashreplace'), VALUE_BYTES_MAX)}")


def _state(shown: Shown, now_ms: int) -> str:
    dead, mark = shown
    if mark is None:
        offsets = f"--partition {dead.partition} --offsets {dead.offset}"
        return f"waits. To replay it: tidelog dlq replay {dead.topic} {offsets}"
    where = f" to {mark.target}" if mark.target else ""
    return f"{mark.kind}{where} {_moment(mark.at_ms, now_ms)}{f': {mark.reason}' if mark.reason else ''}"


def _moment(timestamp_ms: int | None, now_ms: int) -> str:
    return _NONE if timestamp_ms is None else f"{time_text(timestamp_ms)} ({_age(timestamp_ms, now_ms)} ago)"


def _age(timestamp_ms: int | None, now_ms: int) -> str:
    return _NONE if timestamp_ms is None else duration(max(0, now_ms - timestamp_ms) / 1000)


def _age_names() -> list[str]:
    return [name if limit is None else f"within {name}" for name, limit in AGES]


def _cell(content: bytes | None) -> str:
    return "null" if content is None else cut_end(content[:1000].decode("utf-8", "backslashreplace"), CELL_BYTES_MAX)


def _bytes_field(name: str, content: bytes | None) -> dict[str, Any]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        assert content is not None, "only bytes can fail to be text"
        return {f"{name}_base64": base64.b64encode(content).decode()}
