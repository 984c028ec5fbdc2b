"""Dead letters: what a group could not handle, with its whole story, and the way back.

``DeadLetters`` lists, shows, replays, discards and counts them; ``tidelog dlq`` is the same on the command line, and
``AsyncDeadLetters`` the same for asyncio. ``Letter`` is the story in a message's headers. Beside them: ``names`` and ``topics``
of failures; ``filters``, ``ledger``, ``counts``, ``depth``, ``outgoing`` and ``pacing`` decide, and touch no network;
``connection``, ``reading`` and ``settling`` move the bytes. All of it speaks only Kafka.

The names are loaded on use: a worker needs the letter, not the tools.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.deadletters.asyncio_dead_letters import AsyncDeadLetters
    from tidelog.deadletters.dead_letter import DeadLetter
    from tidelog.deadletters.dead_letters import DeadLetters
    from tidelog.deadletters.letter import Letter

__all__ = ["AsyncDeadLetters", "DeadLetter", "DeadLetters", "Letter"]

_MODULES = {
    "AsyncDeadLetters": "asyncio_dead_letters",
    "DeadLetter": "dead_letter",
    "DeadLetters": "dead_letters",
    "Letter": "letter",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
