"""Planted bugs of leaders, followers and elections: each must be found by the tests named here."""

from tests.mutants.table import Mutant

REPLICATION_TESTS = (
    "tests/controller/test_election.py",
    "tests/controller/test_election_histories.py",
    "tests/controller/test_in_sync_set.py",
    "tests/controller/test_replica_directories.py",
    "tests/controller/test_ended_throttles.py",
    "tests/replication",
    "tests/broker/test_coordinator_service.py",
    "tests/simulation/test_explore_replication.py",
)

IN_SYNC = "tidelog/replication/in_sync_replicas.py"
FETCHER = "tidelog/replication/fetcher.py"
PARTITION = "tidelog/replication/partition.py"
ELECTION = "tidelog/controller/election.py"
CONTROLLER = "tidelog/controller/in_sync_set.py"

REPLICATION_MUTANTS = (
    Mutant(
        "replication: acknowledged before the followers are durable",
        "an acks=all write is on every in-sync replica before it is acknowledged",
        PARTITION,
        "        log.advance_high_watermark(in_sync.lowest_durable_end(end) if in_sync.maximal_followers else end)\n",
        "        log.advance_high_watermark(end)\n",
    ),
    Mutant(
        "replication: high watermark by the committed set only",
        "a replica whose addition is in flight may be elected, and has everything",
        IN_SYNC,
        "        members = {*self.isr, *self._additions}\n",
        "        members = {*self.isr}\n",
    ),
    Mutant(
        "replication: additions in flight make up for a missing minimum",
        "eligible replicas have everything below the high watermark",
        PARTITION,
        "        if self.is_under_min_isr:\n            return\n",
        "        if len(self.in_sync.maximal_followers) + 1 < self.min_insync_replicas:\n            return\n",
    ),
    Mutant(
        "replication: a leader goes by its own minimum alone",
        "while the controller would elect others, nothing moves without them",
        PARTITION,
        "        self.is_under_min_isr = len(in_sync.isr) < self.min_insync_replicas or in_sync.has_eligible\n",
        "        self.is_under_min_isr = len(in_sync.isr) < self.min_insync_replicas\n",
    ),
    Mutant(
        "replication: a log that begins within a batch is not copied",
        "every log can be copied, wherever it begins",
        FETCHER,
        "            if self._begins_within(log, result.records):\n",
        "            if False:\n",
    ),
    Mutant(
        "replication: an addition of unknown outcome is forgotten",
        "a proposal whose answer was lost may still be decided",
        IN_SYNC,
        "            if not self._has_unknown_outcome:\n                self._additions = ()\n",
        "            if True:\n                self._additions = ()\n",
    ),
    Mutant(
        "replication: a fetch of an earlier process counts",
        "what a restarted follower claimed to have before does not count",
        IN_SYNC,
        "        if broker_epoch < self.broker_epoch:\n",
        "        if broker_epoch < 0:\n",
    ),
    Mutant(
        "replication: who lacks the beginning of the epoch joins",
        "an in-sync replica has everything that the leader had when its epoch began",
        IN_SYNC,
        "        needed = max(high_watermark, self.epoch_start_offset)\n",
        "        needed = high_watermark\n",
    ),
    Mutant(
        "replication: the epoch of a fetch is not checked",
        "a leader serves fetches of its own epoch only",
        PARTITION,
        "        self.check_epoch(wanted.current_leader_epoch)\n        diverging",
        "        diverging",
    ),
    Mutant(
        "replication: a follower's history is not compared",
        "a follower with another history is told so before it counts",
        PARTITION,
        "        return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < offset else None\n",
        "        return None\n",
    ),
    Mutant(
        "replication: truncated to the high watermark",
        "a follower truncates where the histories differ",
        FETCHER,
        "        offset = truncation_offset(log, epoch, end_offset)\n",
        "        offset = log.high_watermark\n",
    ),
    Mutant(
        "replication: raised before truncated",
        "a high watermark never covers records that the leader does not have",
        FETCHER,
        "        if result.diverging_epoch is not None:\n            self._truncate",
        "        if result.diverging_epoch is not None:\n            log.advance_high_watermark(result.high_watermark)\n"
        "            self._truncate",
    ),
    Mutant(
        "replication: the next fetch does not wait for the disk",
        "a fetch offset is durable",
        FETCHER,
        "        if self._is_in_flight or self._unsynced or self._retry_at_ms > now_ms:\n",
        "        if self._is_in_flight or self._retry_at_ms > now_ms:\n",
    ),
    Mutant(
        "replication: committed records are given up without an unclean election",
        "a replica in sync never truncates below its high watermark",
        FETCHER,
        "        if partition.is_trusted:\n",
        "        if False:\n",
    ),
    Mutant(
        "replication: somebody outside of both sets is elected",
        "only who has everything leads, unless an operator or a topic accepts a loss",
        ELECTION,
        "replica in (isr or eligible) and self.is_acceptable(replica)]",
        "self.is_acceptable(replica)]",
    ),
    Mutant(
        "replication: eligible replicas stay so when the set is large enough",
        "who missed what was committed without it is not eligible",
        ELECTION,
        "        if len(isr) >= effective_min_insync(self.min_insync_replicas, assignment.settled):\n            return ()\n",
        "",
    ),
    Mutant(
        "replication: eligibility is decided before the election and not after it",
        "who missed what a new leader acknowledges alone is not eligible",
        ELECTION,
        "            eligible = self._eligible(isr, assignment)\n",
        "            eligible = tuple(replica for replica in eligible if replica != leader)\n",
    ),
    Mutant(
        "replication: an older broker epoch joins the in-sync set",
        "a member is the process that the leader has seen (KIP-903)",
        CONTROLLER,
        "        elif broker_epoch not in (ANY_BROKER_EPOCH, broker.broker_epoch):\n",
        "        elif False:\n",
    ),
    Mutant(
        "replication: a proposal for an older partition epoch is decided",
        "a leader that has not heard of the last change decides nothing",
        CONTROLLER,
        "    if wanted.partition_epoch < partition.partition_epoch:\n",
        "    if False:\n",
    ),
    Mutant(
        "replication: a shard is kept over a leader change",
        "coordinators load again what may have been decided elsewhere",
        "tidelog/broker/coordinator_service.py",
        "            if self._leader_epochs.get(index) != state.leader_epoch:\n",
        "            if False:\n",
    ),
    Mutant(
        "replication: a shard whose log is being truncated is forgotten",
        "coordinators load what they lead without being asked",
        "tidelog/broker/coordinator_service.py",
        "            if self._is_led_here(index):\n",
        "            if False:\n",
    ),
    Mutant(
        "replication: the last replica that may lead is given up",
        "what is left of the last replica is for the operator to decide about",
        "tidelog/controller/replica_directories.py",
        "    if not {*partition.isr, *partition.eligible_leader_replicas} - {broker_id}:\n",
        "    if False:\n",
    ),
    Mutant(
        "replication: an earlier process reports a replica as lost",
        "a report of an earlier process says nothing about this one",
        "tidelog/controller/replica_directories.py",
        "    check_broker_epoch(image, broker_id, broker_epoch)\n",
        "",
    ),
    Mutant(
        "replication: a damaged replica stays eligible",
        "a damaged replica leaves both sets before it is discarded",
        ELECTION,
        "without=broker_id), gone=(broker_id,)).decide())\n",
        "without=broker_id)).decide())\n",
    ),
    Mutant(
        "replication: replicas in sync are throttled, too",
        "a throttle never makes a replica fall out of the in-sync set",
        PARTITION,
        "        if self.throttle is not None and follower[0] not in self.in_sync.isr:\n",
        "        if self.throttle is not None:\n",
    ),
    Mutant(
        "replication: what a throttled follower is sent is not counted",
        "no more than the rate flows",
        PARTITION,
        "            self.throttle.record(length)\n",
        "            pass\n",
    ),
    Mutant(
        "replication: a follower does not heed its throttle",
        "no more than the rate flows",
        FETCHER,
        "        self._hold_throttled(now_ms)\n",
        "",
    ),
    Mutant(
        "replication: a throttle is left behind",
        "a move that ends takes its throttle along",
        "tidelog/controller/ended_throttles.py",
        "            if kept != listed:\n",
        "            if False:\n",
    ),
    Mutant(
        "replication: the throttle of one move is removed with another",
        "a throttle holds until its own move ends",
        "tidelog/controller/ended_throttles.py",
        "    return index.isascii() and index.isdigit() and int(index) in partitions\n",
        "    return True\n",
    ),
    Mutant(
        "replication: an unused throttle saves up without end",
        "a burst is a second's worth",
        "tidelog/replication/throttle.py",
        "            self._balance = min(self.rate * _SECOND_MS, self._balance",
        "            self._balance = max(0, self._balance",
    ),
)
