"""The states of a transaction, with Kafka's numbers and names, and the valid transitions.

``Dead`` and ``PrepareEpochFence`` are Kafka's names for moments that no record holds: an id that is being forgotten, and a
producer that is being fenced before its transaction is aborted. They are here because requests may name them.
"""

from enum import IntEnum


class TransactionState(IntEnum):
    EMPTY = 0
    """There is a producer, but no transaction yet."""
    ONGOING = 1
    """Partitions were added."""
    PREPARE_COMMIT = 2
    """The end is decided; the markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    """All markers are written."""
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


_S = TransactionState

STATE_NAMES = {
    _S.EMPTY: "Empty",
    _S.ONGOING: "Ongoing",
    _S.PREPARE_COMMIT: "PrepareCommit",
    _S.PREPARE_ABORT: "PrepareAbort",
    _S.COMPLETE_COMMIT: "CompleteCommit",
    _S.COMPLETE_ABORT: "CompleteAbort",
    _S.DEAD: "Dead",
    _S.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
STATES_BY_NAME = {name: state for state, name in STATE_NAMES.items()}

VALID_PREVIOUS_STATES = {
    _S.EMPTY: (_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
    _S.ONGOING: (_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
    _S.PREPARE_COMMIT: (_S.ONGOING,),
    # With transactions v2 a producer that does not know whether its transaction began may abort it anyway.
    _S.PREPARE_ABORT: (_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
    _S.COMPLETE_COMMIT: (_S.PREPARE_COMMIT,),
    _S.COMPLETE_ABORT: (_S.PREPARE_ABORT,),
    _S.DEAD: (_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT),
    _S.PREPARE_EPOCH_FENCE: (_S.ONGOING,),
}

PREPARED_STATES = (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)
COMPLETE_STATES = (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
EXPIRABLE_STATES = (_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
# The states that a record may hold.
RECORDED_STATES = (_S.EMPTY, _S.ONGOING, *PREPARED_STATES, *COMPLETE_STATES)
