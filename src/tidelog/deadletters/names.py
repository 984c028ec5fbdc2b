"""What the topics of failures are called: they belong to one topic *and one group*.

``orders`` read by the group ``email`` has the retry topics ``orders.email.retry.0`` and up, one per backoff level, and the
dead-letter topic ``orders.email.dlq``. What was replayed or discarded of a dead-letter topic stands in its ledger,
``orders.email.dlq.ledger``. Two groups on one topic fail apart: a replay for one is not seen by the other.

Topics and groups may hold dots, so a name alone does not say where the topic ends and the group begins: ``source_topic`` wants to
know the group. Kafka allows 249 of the characters a-z, A-Z, 0-9, dot, underscore and hyphen in a topic; a group may have any
name, so a name that would not do is refused when it is made, with what to change.
"""

import re

from tidelog.client.errors import InvalidArgument

TOPIC_LENGTH_MAX = 249
LEVELS_MAX = 1000

DEAD_LETTER_SUFFIX = ".dlq"
LEDGER_SUFFIX = ".ledger"

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_RETRY = re.compile(r"\.retry\.(0|[1-9][0-9]{0,3})")


def retry_topic(topic: str, group: str, level: int) -> str:
    """Where a message of ``topic`` that failed for ``group`` waits for its next try, by backoff level (from 0)."""
    if not 0 <= level < LEVELS_MAX:
        raise InvalidArgument(f"there are backoff levels from 0 to {LEVELS_MAX - 1}, not {level}")
    return _checked(topic, group, f".retry.{level}")


def dead_letter_topic(topic: str, group: str) -> str:
    """Where a message of ``topic`` ends that ``group`` could not handle."""
    return _checked(topic, group, DEAD_LETTER_SUFFIX)


def ledger_topic(dead_letters: str) -> str:
    """Where marks of what was replayed or discarded of the dead-letter topic are kept."""
    name = dead_letters + LEDGER_SUFFIX
    if len(name) > TOPIC_LENGTH_MAX:
        raise InvalidArgument(
            f"the ledger of {dead_letters} would have a name of {len(name)} characters, Kafka allows {TOPIC_LENGTH_MAX}"
        )
    return name


def is_dead_letter_topic(name: str) -> bool:
    """Whether a topic looks like one of dead letters. Its letters say whose they are."""
    return name.endswith(DEAD_LETTER_SUFFIX) and name != DEAD_LETTER_SUFFIX


def retry_level(name: str, topic: str, group: str) -> int | None:
    """The backoff level of a retry topic of this topic and group, None when ``name`` is not one."""
    prefix = f"{topic}.{group}"
    found = _RETRY.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
    return int(found[1]) if found and int(found[1]) < LEVELS_MAX else None


def source_topic(name: str, group: str) -> str | None:
    """The topic that a retry or dead-letter topic of this group is for, None when ``name`` is neither."""
    for ending in (
        rf"\.{re.escape(group)}\.retry\.(?:0|[1-9][0-9]{{0,2}})",
        rf"\.{re.escape(group)}{re.escape(DEAD_LETTER_SUFFIX)}",
    ):
        found = re.search(f"(?:{ending})$", name)
        if found and found.start() > 0:
            return name[: found.start()]
    return None


def _checked(topic: str, group: str, suffix: str) -> str:
    name = f"{topic}.{group}{suffix}"
    if not topic or not _TOPIC.fullmatch(topic):
        raise InvalidArgument(f"{topic!r} is no name of a topic: Kafka allows a-z, A-Z, 0-9, dot, underscore and hyphen")
    if not group or not _TOPIC.fullmatch(group):
        raise InvalidArgument(
            f"the group {group!r} cannot have retry and dead-letter topics: its name becomes part of theirs, and Kafka allows "
            "a-z, A-Z, 0-9, dot, underscore and hyphen there; give the group another name"
        )
    # The ledger of a dead-letter topic has the longest name of all: what is too long is told before anything failed.
    length = len(name) + (len(LEDGER_SUFFIX) if suffix == DEAD_LETTER_SUFFIX else 0)
    if length > TOPIC_LENGTH_MAX:
        raise InvalidArgument(
            f"the topic {name} would be too long: Kafka allows {TOPIC_LENGTH_MAX} characters"
            f"{' with its ledger' if suffix == DEAD_LETTER_SUFFIX else ''}, so shorten the topic ({len(topic)}) or the "
            f"group ({len(group)}) by {length - TOPIC_LENGTH_MAX}"
        )
    return name
