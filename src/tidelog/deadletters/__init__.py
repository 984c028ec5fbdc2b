"""Dead letters: messages that a group could not handle, with the story of their failure, and the way back.

``DeadLetters`` lists, shows, replays, discards and counts them; ``tidelog dlq`` does the same on the command line, and
``AsyncDeadLetters`` does it for asyncio. The modules:

* ``letter``: ``Letter``, the story in a message's headers;
* ``topics``: the names of retry and dead-letter topics, and their creation;
* ``dead_letter``: one message of a dead-letter topic, filters, counts and depths; pure;
* ``ledger``: the marks of letters that were replayed or discarded; pure;
* ``cluster``: requests to the cluster, and reading of letters and ledgers;
* ``replay``: replaying and discarding, each letter exactly once.

All of it works on any Kafka. The names are loaded on use: a worker needs the letter, not the tools.
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
