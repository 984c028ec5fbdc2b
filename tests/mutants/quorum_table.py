"""Planted bugs of the metadata quorum: each breaks one promise, and each must be found by the simulation of the quorum."""

from tests.mutants.table import Mutant

CORE = "tidelog/raft/quorum.py"

QUORUM_MUTANTS = (
    Mutant(
        "quorum: the vote is not fsynced",
        "a replica votes once in an epoch, across crashes",
        "tidelog/raft/quorum_state.py",
        "        file.sync()\n        self._disk.rename(",
        "        self._disk.rename(",
    ),
    Mutant(
        "quorum: messages leave before the state is stored",
        "nobody hears of a vote or an epoch that a crash could take back",
        CORE,
        "        if self.quorum_state == self._stored:\n            self._messages.append(message)\n",
        "        if self.quorum_state is not None:\n            self._messages.append(message)\n",
    ),
    Mutant(
        "quorum: a follower fetches before it has synced",
        "a fetch offset says what is on the disk",
        CORE,
        "        elif self._log.durable_end_offset >= self._log.end_offset:\n            self._ask(peer,",
        "        elif self._log.end_offset >= 0:\n            self._ask(peer,",
    ),
    Mutant(
        "quorum: the leader counts what it has not synced",
        "what is committed is on the disks of a majority",
        CORE,
        "            return self._log.durable_end_offset\n        return max((each.counted_offset",
        "            return self._log.end_offset\n        return max((each.counted_offset",
    ),
    Mutant(
        "quorum: an entry of an older epoch is committed by counting",
        "what is committed once stays",
        CORE,
        "        if offset > leadership.start_offset and offset > self.high_watermark:\n",
        "        if offset > self.high_watermark:\n",
    ),
    Mutant(
        "quorum: a second vote in the same epoch",
        "an epoch has one leader",
        CORE,
        "        if state.voted_id != NOBODY:\n            return (state.voted_id",
        "        if state.voted_id == NOBODY - 1:\n            return (state.voted_id",
    ),
    Mutant(
        "quorum: a vote for a log that lacks entries",
        "a leader has everything that was committed",
        CORE,
        "        is_up_to_date = (request.last_epoch, request.last_offset) >= (self._log.last_epoch, self._log.end_offset)\n",
        "        is_up_to_date = request.last_epoch >= 0\n",
    ),
    Mutant(
        "quorum: a refusal counts as a vote",
        "an epoch has one leader",
        CORE,
        "        if reply.error is ErrorCode.NONE and reply.vote_granted:\n",
        "        if reply.error is ErrorCode.NONE:\n",
    ),
    Mutant(
        "quorum: pre-votes always granted",
        "a node that has just heard from its leader does not help to replace it",
        CORE,
        "            return is_up_to_date and not is_following and self.state is not RaftState.LEADER\n",
        "            return is_up_to_date or is_following\n",
    ),
    Mutant(
        "quorum: a leader without a majority does not resign",
        "a leader that has lost its majority stops within the fetch time-out",
        CORE,
        "        if self.voters.ids == (self.node_id,):\n            self._set_timer(QuorumTimer.CHECK_QUORUM",
        "        if self.node_id >= 0:\n            self._set_timer(QuorumTimer.CHECK_QUORUM",
    ),
    Mutant(
        "quorum: a leader that restarts goes on leading",
        "an offset of an epoch has one content",
        CORE,
        "        elif self.quorum_state.leader_id == self.node_id:\n            self._become_resigned()\n",
        "        elif self.quorum_state.leader_id == self.node_id:\n            self._become_leader()\n"
        "            self._begin_leadership(self._leadership or Leadership())\n",
    ),
    Mutant(
        "quorum: a follower is ahead of the high watermark",
        "nothing reaches an image before a majority has it",
        CORE,
        "        self._advance_high_watermark(min(reply.high_watermark, log.end_offset))\n",
        "        self._advance_high_watermark(log.end_offset)\n",
    ),
    Mutant(
        "quorum: a log that diverges is not cut",
        "equal offset means equal content",
        CORE,
        "        if end.epoch != epoch or end.end_offset < offset:\n",
        "        if end.epoch > epoch:\n",
    ),
    Mutant(
        "quorum: voters changed before a record of the epoch is committed",
        "two leaders never count two majorities that do not overlap",
        CORE,
        '        if not self.is_leading:\n            message = "The leader has',
        '        if self.node_id < 0:\n            message = "The leader has',
    ),
    Mutant(
        "quorum: two changes of the voters at once",
        "two voter sets that follow each other share a majority",
        CORE,
        "        if leadership.change is not None or self._history.voters_offset >= self.high_watermark:\n",
        "        if self.node_id < 0:\n",
    ),
    Mutant(
        "quorum: the voters stay when their record is cut",
        "the voters are those of the log",
        "tidelog/raft/voters.py",
        "        self._records = tuple(placed for placed in self._records if placed[0] < end_offset)\n",
        "        self._records = tuple(placed for placed in self._records if end_offset >= 0)\n",
    ),
)
