"""The three things that can be done about a letter: back to its group, back to everybody, or never again."""

import time

from tidelog.client.errors import UnknownTopic
from tidelog.deadletters.connection import Connection
from tidelog.deadletters.dead_letter import DeadLetter
from tidelog.deadletters.ledger import DISCARDED, REPLAYED, Mark
from tidelog.deadletters.names import retry_topic
from tidelog.deadletters.outgoing import Outgoing, to_origin, to_retry_topic
from tidelog.deadletters.topics import FAILURE_CONFIG, ensure_topics


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class ReplayToRetryTopic:
    """Only the group that it failed for sees it again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ready: set[str] = set()

    def wants(self, dead: DeadLetter) -> bool:
        return dead.is_replayable

    def prepare(self, dead: DeadLetter) -> None:
        """The retry topic is there, with as many partitions as the dead letters have."""
        assert dead.letter is not None, "only letters with a story are replayed"
        name = retry_topic(dead.letter.topic, dead.letter.group, 0)
        if name not in self._ready:
            connection = self._connection
            ensure_topics(connection.admin, dead.topic, {name: FAILURE_CONFIG}, addresses=connection.addresses)
            self._ready.add(name)

    def decide(self, dead: DeadLetter) -> tuple[Outgoing, Mark]:
        return _replayed(to_retry_topic(dead, now_ms()))


class ReplayToOrigin:
    """Every group that reads the topic sees it again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._partitions: dict[str, int] = {}

    def wants(self, dead: DeadLetter) -> bool:
        return dead.is_replayable

    def prepare(self, dead: DeadLetter) -> None:
        """Nothing: an origin that is gone is not made again."""

    def decide(self, dead: DeadLetter) -> tuple[Outgoing, Mark]:
        assert dead.letter is not None, "only letters with a story are replayed"
        name = dead.letter.topic
        if name not in self._partitions:
            found = self._connection.topics().get(name)
            if found is None:
                raise UnknownTopic(
                    f"the letters of {dead.topic} came from {name}, which is not at {self._connection.addresses} any more: "
                    "create it, or replay them to the group's retry topic"
                )
            self._partitions[name] = len(found.partitions)
        return _replayed(to_origin(dead, self._partitions[name]))


class Discard:
    """Nobody sees it again, and it is counted no more. It stays in the topic until retention deletes it."""

    def __init__(self, reason: str | None) -> None:
        self._reason = reason

    def wants(self, _dead: DeadLetter) -> bool:
        return True

    def prepare(self, _dead: DeadLetter) -> None:
        """Nothing is sent."""

    def decide(self, _dead: DeadLetter) -> tuple[None, Mark]:
        return None, Mark(DISCARDED, now_ms(), reason=self._reason)


def _replayed(outgoing: Outgoing) -> tuple[Outgoing, Mark]:
    return outgoing, Mark(REPLAYED, now_ms(), target=outgoing.topic)
