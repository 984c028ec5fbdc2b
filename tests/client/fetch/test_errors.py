"""Errors say which offsets, and survive the way from a task to its driver."""

import pickle

from tidelog.client.fetch.errors import OffsetsLost


def test_lost_offsets_are_named_and_survive_pickling() -> None:
    error = OffsetsLost("orders", 3, 10, 25)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert "orders[3]: offsets 10 to 24 are lost" in str(each)
        assert (each.topic, each.partition, each.wanted, each.log_start) == ("orders", 3, 10, 25)
