"""The states of a classic group, with Kafka's names, and which may follow which."""

from enum import Enum


class ClassicState(Enum):
    EMPTY = "Empty"
    """No members; it may hold offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Waits for the leader's assignment."""
    STABLE = "Stable"
    """The assignment is in the log."""
    DEAD = "Dead"
    """What DescribeGroups shows of a group that does not exist. No group is ever in this state."""


PREVIOUS_STATES: dict[ClassicState, tuple[ClassicState, ...]] = {
    ClassicState.EMPTY: (ClassicState.PREPARING_REBALANCE,),
    ClassicState.PREPARING_REBALANCE: (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY),
    ClassicState.COMPLETING_REBALANCE: (ClassicState.PREPARING_REBALANCE,),
    ClassicState.STABLE: (ClassicState.COMPLETING_REBALANCE,),
    ClassicState.DEAD: (),
}
