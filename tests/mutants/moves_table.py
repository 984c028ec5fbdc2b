"""Planted bugs of moves of partitions: each must be found by the tests named here."""

from tests.mutants.table import Mutant

MOVES_TESTS = (
    "tests/controller/test_reassignment.py",
    "tests/controller/test_ended_throttles.py",
    "tests/broker/test_replication.py",
    "tests/simulation/test_moving_simulation.py",
)
ELECTION = "tidelog/controller/election.py"
REASSIGNMENT = "tidelog/controller/reassignment.py"
THROTTLES = "tidelog/controller/ended_throttles.py"

MOVES_MUTANTS = (
    Mutant(
        "moves: complete before the new replicas are in sync",
        "old replicas leave when every new one has everything",
        ELECTION,
        "            and set(assignment.adding) <= set(staying)\n",
        "",
    ),
    Mutant(
        "moves: complete below the minimum",
        "a move leaves enough replicas in sync for acks=all",
        ELECTION,
        "            and len(staying) >= effective_min_insync(self.min_insync_replicas, target)\n",
        "            and staying\n",
    ),
    Mutant(
        "moves: a cancelled move keeps the new replicas",
        "cancelling returns to the replicas from before the move",
        REASSIGNMENT,
        "        assignment = ReplicaAssignment(before.settled)\n",
        "        assignment = ReplicaAssignment(before.target)\n",
    ),
    Mutant(
        "moves: a second move begins where the first one is",
        "cancelling always leads back to where the first move began",
        REASSIGNMENT,
        "        assignment = _new_assignment(image, rules, wanted, before.settled)\n",
        "        assignment = _new_assignment(image, rules, wanted, before.replicas)\n",
    ),
    Mutant(
        "moves: to a broker that is down",
        "a broker that is added has to be active",
        REASSIGNMENT,
        "        if not image.brokers.is_active(broker_id):\n",
        "        if broker_id not in image.brokers:\n",
    ),
    Mutant(
        "moves: a throttle is left behind",
        "the decision that ends a move removes its throttle",
        THROTTLES,
        "not replicas_of(changed_partition(before, record)).is_moving:\n",
        "not replicas_of(before).is_moving:\n",
    ),
)
