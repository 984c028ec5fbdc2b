"""Reads a ledger to its end, into its sum.

A ledger has one partition, so that its end is one number. ``read_ledger`` reads what is committed now. Who is about to write
marks first opens the producer with the one transactional id of the dead-letter topic: that fences every other and ends its
transaction, so that the ledger's end is fixed, and the sum is whole.
"""

from tidelog.deadletters.connection import Bounds, Connection
from tidelog.deadletters.ledger import Ledger, Place
from tidelog.deadletters.names import ledger_topic
from tidelog.deadletters.reading import read


def read_ledger(connection: Connection, topic: str, bounds: dict[int, Bounds], watched: tuple[int, int] | None = None) -> Ledger:
    """The sum of the marks of a dead-letter topic. ``watched`` is a partition and offset whose mark is wanted whole."""
    topic_id = connection.topic_id(topic)
    log_starts = {partition: bound.start for partition, bound in bounds.items()}
    ledger = Ledger(topic, topic_id, log_starts, None if watched is None else Place(topic, topic_id, *watched))
    name = ledger_topic(topic)
    # No ledger: nothing was ever replayed or discarded.
    for batch in read(connection, name, dict(connection.bounds(name))):
        for message in batch:
            ledger.replay(message.key(), message.value())
    return ledger
