"""Planted bugs that take a shortage for damage, or let it cost something: each must be found by the tests named here."""

from tests.mutants.table import Mutant

SCARCITY_TESTS = (
    "tests/log/durability/test_full_and_broken_disks.py",
    "tests/log/compaction/test_swap.py",
    "tests/log/compaction/test_cleaner.py",
    "tests/coordinator/test_shard.py",
    "tests/broker/test_config.py",
    "tests/broker/test_full_disk.py",
    "tests/broker/test_broker.py",
)

SCARCITY_MUTANTS = (
    Mutant(
        "scarcity: a sync without a descriptor takes the log offline",
        "only a failed sync of written pages takes a log offline",
        "tidelog/log/partition_log.py",
        "        if is_scarcity(error):\n            if self.offline_reason is None:\n",
        "        if is_scarcity(error) and self.is_retired:\n            if self.offline_reason is None:\n",
    ),
    Mutant(
        "scarcity: a failed sync with the number of a shortage is repeated",
        "nothing is durable whose sync has failed, whatever a second one says",
        "tidelog/log/environment.py",
        " and error.errno in NO_ROOM and not isinstance(error, SyncFailed)\n",
        " and error.errno in NO_ROOM\n",
    ),
    Mutant(
        "scarcity: a plan that could not run forgets its segments",
        "what was not synced is synced before it counts as durable",
        "tidelog/log/durability/sync_plan.py",
        "        self.segments = [*segments, *[segment for segment in self.segments if segment not in segments]]\n",
        "        self.segments = [segment for segment in self.segments if segment not in segments]\n",
    ),
    Mutant(
        "scarcity: a swap without room takes the log offline",
        "a shortage delays a swap and damages nothing",
        "tidelog/log/compaction/swap.py",
        "        if is_scarcity(error):\n            self._log.environment.report",
        "        if error is None:\n            self._log.environment.report",
    ),
    Mutant(
        "scarcity: a commit without room drops the shard until a later reload",
        "positions can be read while the disk is full",
        "tidelog/coordinator/shard.py",
        "        except StorageError as error:\n            self._suspend(error)\n            return False\n",
        "",
    ),
    Mutant(
        "scarcity: a shard without room goes on with what it had decided",
        "nobody reads what was not written",
        "tidelog/coordinator/shard.py",
        "        self._discard(reason)\n        self._suspension = ",
        "        self._in_flight.clear()\n        self._suspension = ",
    ),
    Mutant(
        "scarcity: internal topics relaxed by the broker's default",
        "positions and transactions are durable when they are answered",
        "tidelog/broker/config.py",
        "        if topic in INTERNAL_TOPICS:\n",
        "        if topic in ():\n",
    ),
    Mutant(
        "scarcity: producers take the reserve",
        "what is left of a full disk is for what makes room",
        "tidelog/replication/partition.py",
        "            log.environment.reserve.check()\n",
        "            pass\n",
    ),
    Mutant(
        "scarcity: a stale checkpoint applies to a new partition of the name",
        "a new partition does not inherit the offsets of a deleted one",
        "tidelog/log/data_directory.py",
        "            self._being_deleted |= stale\n            self._unpurged |= stale\n",
        "",
    ),
    Mutant(
        "scarcity: a child that hangs is not killed when its log is deleted",
        "the deletion of a topic does not wait for a compaction that hangs",
        "tidelog/log/compaction/cleaner.py",
        "        if self._child is not None:\n            self._child.cancel()\n",
        "",
    ),
    Mutant(
        "scarcity: readers of a relaxed topic are not told of a crash",
        "a crash that may have lost what was read begins a new leader epoch",
        "tidelog/controller/election.py",
        "        has_crashed = condition is DataCondition.CRASHED and rules.is_relaxed(topic.name)\n",
        "        has_crashed = False\n",
    ),
)
