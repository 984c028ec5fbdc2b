"""Planted bugs of groups and transactions: each breaks one promise to clients, and each must be found within 300 seeds by the
simulation of the world that the beginning of its name says."""

from tests.mutants.table import Mutant

GROUP_MUTANTS = (
    Mutant(
        "groups: decisions answered before they are durable",
        "an acknowledged commit survives a power cut",
        "tidelog/coordinator/shard.py",
        "        if newest is None:\n            self._finish(on_done, response, on_committed, None)\n",
        "        if newest is not None:\n            newest.waiting.append((None, None, None))\n"
        "        if True:\n            self._finish(on_done, response, on_committed, None)\n",
    ),
    Mutant(
        "groups: offsets read before they are durable",
        "a committed offset that was read does not go back",
        "tidelog/coordinator/shard.py",
        "            self._decide(lambda machine: CoordinatorResult(response=query(machine)), on_done)\n",
        "            try:\n                response = query(self._active())\n            except Exception as error:\n"
        "                on_done(None, error)\n            else:\n                on_done(response, None)\n",
    ),
    Mutant(
        "groups: commits of a stale generation accepted",
        "who is no longer in the group cannot move its positions",
        "tidelog/groups/classic/group.py",
        "        if error is ErrorCode.NONE and generation != self.generation:\n",
        "        if error is ErrorCode.NONE and generation > self.generation:\n",
    ),
    Mutant(
        "groups: commits of members that were put out accepted",
        "who is no longer in the group cannot move its positions",
        "tidelog/groups/consumer/group.py",
        "        member = self.member(member_id)\n        if member.classic is None and api_version",
        "        if member_id not in self.members:\n            return\n"
        "        member = self.member(member_id)\n        if member.classic is None and api_version",
    ),
    Mutant(
        "groups: assignment sent before it is durable",
        "what a member begins to read is its own after a crash as well",
        "tidelog/groups/classic/protocol.py",
        "            decision.answer(group.take_sync_answer(member), response, member)\n",
        "            answer = group.take_sync_answer(member)\n            if answer is not None:\n"
        "                answer(response, None)\n",
    ),
    Mutant(
        "groups: the leader's part sent to everybody",
        "a partition has one owner in a generation",
        "tidelog/groups/classic/protocol.py",
        '            response = _assigned(group, assignments.get(member.member_id, b""))\n',
        '            response = _assigned(group, next(iter(assignments.values()), b""))\n',
    ),
    Mutant(
        "groups: sessions of classic members never end",
        "what a member had that is gone goes to others",
        "tidelog/groups/classic/rebalance.py",
        "        return self._on_expired(group, member)\n",
        "        return CoordinatorResult()\n",
    ),
    Mutant(
        "groups: sessions of consumer members never end",
        "what a member had that is gone goes to others",
        "tidelog/groups/consumer/protocol.py",
        '            return self._fence(group_id, member_id, "the member session expired")\n',
        "            return CoordinatorResult()\n",
    ),
    Mutant(
        "groups: sessions end however often a member is heard of",
        "a member that is heard of in time keeps what it has",
        "tidelog/groups/consumer/protocol.py",
        "            if remaining_ms > 0:\n",
        "            if remaining_ms > 1_000_000:\n",
    ),
    Mutant(
        "groups: a partition given before its owner gave it up",
        "a partition has one owner at a time",
        "tidelog/groups/consumer/rebalance.py",
        "            free = [partition for partition in missing if self.is_free(topic_id, partition)]\n",
        "            free = missing\n",
    ),
    Mutant(
        "groups: partitions taken without a word of the member",
        "a partition has one owner at a time",
        "tidelog/groups/consumer/rebalance.py",
        "        if revoked and self._owns_any(revoked):\n",
        "        if revoked and not self.owned:\n",
    ),
    Mutant(
        "groups: a rebalance does not wait for those who are in it",
        "a member that is heard of in time keeps what it has until it gives it up",
        "tidelog/groups/classic/rebalance.py",
        "        elif group.has_all_joined:\n",
        "        elif group.group_id:\n",
    ),
)

TRANSACTION_MUTANTS = (
    Mutant(
        "transactions: markers before the decision is durable",
        "what was committed for a reader stays committed",
        "tidelog/transactions/transaction.py",
        "        return CoordinatorResult([record], response, partial(self._committed, transactional_id, on_committed))\n",
        "        early = None if on_committed is None else partial(on_committed, transactional_id)\n"
        "        return CoordinatorResult([record], response, partial(self._committed, transactional_id, None), early)\n",
    ),
    Mutant(
        "transactions: markers not sent again after a crash",
        "a transaction that was decided is brought to its end",
        "tidelog/transactions/end_transaction.py",
        "                self._write_markers(transactional_id)\n",
        "                pass\n",
    ),
    Mutant(
        "transactions: complete when the first partition is marked",
        "a transaction is whole in all its partitions",
        "tidelog/transactions/end_transaction.py",
        "        if markers is not None and not markers.remaining:\n",
        "        if markers is not None:\n",
    ),
    Mutant(
        "transactions: InitProducerId keeps the epoch",
        "a worker that was replaced can do no more",
        "tidelog/transactions/coordinator.py",
        "                producer_epoch += 1\n",
        "                pass\n",
    ),
    Mutant(
        "transactions: EndTxn keeps the epoch",
        "a request that comes late does not fall into a later transaction",
        "tidelog/transactions/end_transaction.py",
        "            producer_epoch=min(value.producer_epoch + 1, EPOCH_MAX),\n            next_producer_id=next_producer_id,\n",
        "            producer_epoch=value.producer_epoch,\n            next_producer_id=next_producer_id,\n",
    ),
    Mutant(
        "transactions: EndTxn of an earlier transaction ends a later one",
        "an EndTxn that comes late does not end a later transaction",
        "tidelog/transactions/end_transaction.py",
        "    return producer_epoch == value.producer_epoch\n",
        "    return producer_epoch <= value.producer_epoch\n",
    ),
    Mutant(
        "transactions: records taken without asking the coordinator",
        "records that come late begin no transaction that nobody ends",
        "tidelog/broker/transactions/transactional_produce.py",
        "            elif must_verify and partition not in batches and not self._is_open(partition, header):\n",
        "            elif must_verify and header.producer_id < 0 and not self._is_open(partition, header):\n",
    ),
    Mutant(
        "transactions: the list of aborted ones cut short",
        "nothing that was aborted is read",
        "tidelog/log/segments/indexes.py",
        "            if enough is not None and len(found) > enough:\n",
        "            if found:\n",
    ),
    Mutant(
        "transactions: aborted ones of later segments not listed",
        "nothing that was aborted is read",
        "tidelog/log/reading.py",
        "    for later in range(index, len(segments)):\n        if segments[later].transaction_index",
        "    for later in range(index, index + 1):\n        if segments[later].transaction_index",
    ),
    Mutant(
        "transactions: last stable offset ahead",
        "nothing of an open transaction is read",
        "tidelog/log/partition_log.py",
        "        if first_unstable is None or first_unstable > self.high_watermark:\n",
        "        if first_unstable is None or first_unstable > 0:\n",
    ),
    Mutant(
        "transactions: aborted offsets count",
        "positions move only with the transaction that they belong to",
        "tidelog/groups/offsets.py",
        "            if is_commit and value is not None:\n",
        "            if value is not None:\n",
    ),
    Mutant(
        "transactions: offsets count before the commit",
        "positions move only with the transaction that they belong to",
        "tidelog/groups/offsets.py",
        "        if producer_id >= 0:\n            self.pending.add(",
        "        if producer_id < -1:\n            self.pending.add(",
    ),
    Mutant(
        "transactions: never timed out",
        "a transaction whose worker is gone does not keep readers waiting for ever",
        "tidelog/transactions/coordinator.py",
        "        return value.start_timestamp_ms + value.timeout_ms < self._environment.clock.now_ms()\n",
        "        return False\n",
    ),
    Mutant(
        "transactions: a batch that was sent again is written again",
        "a batch is written once however often it is sent",
        "tidelog/log/producers/producer_state.py",
        "            if duplicate is not None:\n                return duplicate\n",
        "            if duplicate is not None:\n                return None\n",
    ),
)
