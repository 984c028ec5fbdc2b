"""Planted bugs of the broker: each breaks one promise to clients, and each must be found by the simulation within 300 seeds."""

from tests.mutants.table import Mutant

BROKER_MUTANTS = (
    Mutant(
        "broker: acks=all answered at the append",
        "acks=all is answered when the records are durable",
        "tidelog/broker/handlers/produce.py",
        "        waiting.wait()\n",
        "        _reply(context, request, batches)\n",
    ),
    Mutant(
        "broker: acknowledged before the covering sync ended",
        "what is acknowledged with acks=all survives a power cut",
        "tidelog/log/durability/group_commit.py",
        "        self._ports.executor.submit(work, lambda completion: self._finish(logs, plans, wanted, completion))\n",
        "        for log, plan in zip(logs, plans, strict=True):\n            log.finish_sync(plan, None)\n"
        "            self._wake(log, None)\n"
        "            for listener in log.durability_listeners:\n                listener()\n"
        "        self._ports.executor.submit(work, lambda completion: self._finish(logs, plans, wanted, completion))\n",
    ),
    Mutant(
        "broker: high watermark ahead of what is durable",
        "nobody reads what a power cut could take back",
        "tidelog/replication/partition.py",
        "        end = log.log_end_offset if log.settings.is_relaxed else log.durable.offset\n",
        "        end = log.log_end_offset\n",
    ),
    Mutant(
        "broker: replies in the order of their making",
        "replies come in the order of the requests",
        "tidelog/broker/session.py",
        "            response = pending[0].response\n            if response is None:\n                return\n"
        "            pending.popleft()\n",
        "            answered = [request for request in pending if request.response is not None]\n"
        "            if not answered:\n                return\n"
        "            response = answered[0].response\n            pending.remove(answered[0])\n",
    ),
    Mutant(
        "broker: a reply swallowed while others wait",
        "every request is answered once",
        "tidelog/broker/session.py",
        "            if response and not self.is_closed:\n",
        "            if response and not self.is_closed and len(pending) < 4:\n",
    ),
    Mutant(
        "broker: last batch of a segment lost on a roll",
        "a roll keeps what the old segment holds",
        "tidelog/log/partition_log.py",
        "        plan = SyncPlan(\n",
        "        if len(self._unsynced.segments) > 1:\n            self._unsynced.segments = self._unsynced.segments[1:]\n"
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
        "            on_replicated(error)\n",
        "            on_replicated(None)\n",
    ),
    Mutant(
        "broker: a produce whose time is up is a success",
        "what is not replicated in time is not acknowledged",
        "tidelog/broker/handlers/produce.py",
        "            if batch.waiting is not None:\n                batch.waiting = None\n",
        "            if batch.error is not None:\n                batch.waiting = None\n",
    ),
    Mutant(
        "broker: acks=all waits for the first partition of a request only",
        "every partition of a request is durable when it is answered",
        "tidelog/broker/handlers/produce.py",
        "                self._open_count += 1\n",
        "                self._open_count = 1\n",
    ),
    Mutant(
        "broker: base offset of the last record",
        "an acknowledgement says where the first record is",
        "tidelog/broker/handlers/produce.py",
        "        ProduceResult, (index, NO_ERROR, result.first_offset,",
        "        ProduceResult, (index, NO_ERROR, result.last_offset,",
    ),
    Mutant(
        "broker: acks=0 is answered",
        "a request with acks=0 gets no answer",
        "tidelog/broker/handlers/produce.py",
        "        context.reply_nothing()\n",
        "        _reply(context, topics)\n",
    ),
    Mutant(
        "broker: metadata counts before it is durable",
        "a topic that was made, and a setting that was changed, survive a power cut",
        "tidelog/broker/metadata_log.py",
        "        return self.log.durable.offset\n",
        "        return self.log.log_end_offset\n",
    ),
    Mutant(
        "broker: errors of a sync swallowed",
        "a failed sync is an error to who waited for it",
        "tidelog/log/durability/sync_plan.py",
        "    return SyncOutcome([_error_of(partial(plan.run, disk)) for plan in plans], False)\n",
        "    return SyncOutcome([_error_of(partial(plan.run, disk)) and None for plan in plans], False)\n",
    ),
    Mutant(
        "broker: retention passes the high watermark",
        "nothing at or above the high watermark is deleted",
        "tidelog/log/retention/retention.py",
        "    limit = min(log.high_watermark, log.durable.offset)\n",
        "    limit = log.log_end_offset\n",
    ),
    Mutant(
        "broker: batches appended during a pass left to the next append",
        "what was appended while a sync ran is synced by the next one",
        "tidelog/log/durability/group_commit.py",
        "        self._on_pass_ended(logs)\n        self.kick()\n",
        "        self._on_pass_ended(logs)\n        self._dirty = {}\n",
    ),
    Mutant(
        "broker: lost pages taken for durable by a start",
        "what a start shows is on the disk, also when a failed sync left no mark",
        "tidelog/log/recovery/log_recovery.py",
        "        disk.drop_cache(segment.path)\n",
        "        pass\n",
    ),
    Mutant(
        "broker: the end of a log is where it was written",
        "ListOffsets says where consumers can read to",
        "tidelog/replication/partition.py",
        "        return log.last_stable_offset if is_read_committed else log.high_watermark\n",
        "        return log.last_stable_offset if is_read_committed else log.log_end_offset\n",
    ),
    Mutant(
        "broker: a waiting fetch not told of new records",
        "a long poll hears of new records at once",
        "tidelog/replication/partition.py",
        "                waiter.on_data(self)\n\n    def wait_replicated(",
        "                pass\n\n    def wait_replicated(",
    ),
    Mutant(
        "broker: fetch session keeps what was forgotten",
        "a fetch answers for what was asked",
        "tidelog/broker/fetch_sessions.py",
        "                self.partitions.pop((forgotten.name, forgotten.topic_id, index), None)\n",
        "                pass\n",
    ),
    Mutant(
        "broker: fetch session keeps the first offset",
        "an incremental fetch goes on where the reader says",
        "tidelog/broker/fetch_sessions.py",
        "                    known.change(wanted)\n",
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
        "tidelog/replication/partition.py",
        "        log.add_durability_listener(self.advance)\n        self.advance()\n",
        "        log.add_durability_listener(self.advance)\n",
    ),
    Mutant(
        "broker: a waiting fetch forgotten by its partition",
        "a long poll hears of new records and of its time",
        "tidelog/broker/handlers/fetch.py",
        "        self._timer = broker.timers.schedule(wait_ms_max, self._time_out)\n",
        "        self._timer = None\n",
    ),
)
