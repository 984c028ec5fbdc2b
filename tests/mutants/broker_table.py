"""Planted bugs of the broker: each breaks one promise to clients, and each must be found by the simulation within 300 seeds."""

from tests.mutants.table import Mutant

BROKER_MUTANTS = (
    Mutant(
        "broker: acks=all answered at the append",
        "acks=all is answered when the records are durable",
        "tidelog/broker/handlers/produce.py",
        "    waiting = _Waiting(context, request.timeout_ms) if acks == ACKS_ALL else None\n",
        "    waiting = None\n",
    ),
    Mutant(
        "broker: acknowledged before the covering sync ended",
        "what is acknowledged with acks=all survives a power cut",
        "tidelog/log/group_commit.py",
        "        self._executor.submit(work, lambda completion: self._finish(logs, plans, wanted, completion))\n",
        "        for log, plan in zip(logs, plans, strict=True):\n            log.finish_sync(plan, None)\n"
        "            self._wake(log, None)\n"
        "        if self._on_synced is not None:\n            self._on_synced(logs)\n"
        "        self._executor.submit(work, lambda completion: self._finish(logs, plans, wanted, completion))\n",
    ),
    Mutant(
        "broker: high watermark ahead of what is durable",
        "nobody reads what a power cut could take back",
        "tidelog/replication/partition.py",
        "        log.advance_high_watermark(log.log_end_offset if log.settings.is_relaxed else log.durable.offset)\n",
        "        log.advance_high_watermark(log.log_end_offset)\n",
    ),
    Mutant(
        "broker: replies in the order of their making",
        "replies come in the order of the requests",
        "tidelog/broker/session.py",
        "        while pending and pending[0].parts is not None:\n            parts = pending.popleft().parts\n",
        "        for slot in [slot for slot in pending if slot.parts is not None]:\n"
        "            pending.remove(slot)\n            parts = slot.parts\n",
    ),
    Mutant(
        "broker: a reply swallowed while others wait",
        "every request is answered once",
        "tidelog/broker/session.py",
        "            if parts and not self.is_closed:\n",
        "            if parts and not self.is_closed and len(pending) < 4:\n",
    ),
    Mutant(
        "broker: last batch of a segment lost on a roll",
        "a roll keeps what the old segment holds",
        "tidelog/log/partition_log.py",
        "        plan = SyncPlan(\n",
        "        if len(self.unsynced.segments) > 1:\n            self.unsynced.segments = self.unsynced.segments[1:]\n"
        "        plan = SyncPlan(\n",
    ),
    Mutant(
        "broker: fetch up to the log end",
        "consumers see nothing above the high watermark",
        "tidelog/broker/handlers/fetch.py",
        "else Isolation.HIGH_WATERMARK\n",
        "else Isolation.LOG_END\n",
    ),
    Mutant(
        "broker: every waiting producer acknowledged when the high watermark moves",
        "an acknowledgement is for the records that it was asked for",
        "tidelog/replication/partition.py",
        "            while waiting and waiting[0][0] <= high_watermark:\n",
        "            while waiting:\n",
    ),
    Mutant(
        "broker: producers told of success when the partition goes offline",
        "a failed sync is an error to who waited for it",
        "tidelog/replication/partition.py",
        "            on_replicated(error)\n        for waiter",
        "            on_replicated(None)\n        for waiter",
    ),
    Mutant(
        "broker: a produce whose time is up is a success",
        "what is not replicated in time is not acknowledged",
        "tidelog/broker/handlers/produce.py",
        "        for place in self._open.values():\n            self._set_error(",
        "        for place in ():\n            self._set_error(",
    ),
    Mutant(
        "broker: fetch session keeps the first offset",
        "an incremental fetch goes on where the reader says",
        "tidelog/broker/fetch_sessions.py",
        "                    known.wanted = wanted\n",
        "                    pass\n",
    ),
    Mutant(
        "broker: a topic made again finds the partitions of the deleted one",
        "a topic made again can be used",
        "tidelog/broker/partitions.py",
        "        partitions = self._by_name.pop(topic.name, {})\n",
        "        partitions = self._by_name.get(topic.name, {})\n",
    ),
    Mutant(
        "broker: high watermark not restored by a start",
        "the high watermark never falls visibly",
        "tidelog/broker/partitions.py",
        "        self._by_log[partition.log] = partition\n        partition.advance()\n",
        "        self._by_log[partition.log] = partition\n",
    ),
    Mutant(
        "broker: a waiting fetch forgotten by its partition",
        "a long poll hears of new records and of its time",
        "tidelog/broker/delayed_fetch.py",
        "        self._timer = self._broker.timers.schedule(wait_ms_max, self._time_out)\n",
        "        self._timer = None\n",
    ),
)
