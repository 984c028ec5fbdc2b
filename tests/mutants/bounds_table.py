"""Planted bugs that let one request hold the loop, or take the memory. The tests of bounded work must find each of them."""

from tests.mutants.table import Mutant

BOUNDS_TESTS = (
    "tests/broker/test_work_slices.py",
    "tests/broker/handlers/test_share_bounds.py",
    "tests/broker/handlers/test_bounded_work.py",
    "tests/broker/handlers/test_produce.py",
    "tests/server/test_limits.py",
)

BOUNDS_MUTANTS = (
    Mutant(
        "bounds: a Produce of any length is handled at once",
        "no request holds the loop",
        "tidelog/wire/produce.py",
        "    if count > elements_left:\n        raise TooLongForOneTurn\n",
        "",
    ),
    Mutant(
        "bounds: the decoded partitions of a Produce that waits are not counted",
        "what is decoded and not answered is accounted for",
        "tidelog/broker/session.py",
        "        if api.count_elements is not None and context.response is None:\n",
        "        if False:\n",
    ),
    Mutant(
        "bounds: a large Produce keeps its memory while it waits for followers",
        "a request that waits for others holds no memory that they need",
        "tidelog/broker/handlers/produce.py",
        "        context.return_memory()\n",
        "",
    ),
    Mutant(
        "bounds: a slice never ends",
        "long work leaves the loop to others",
        "tidelog/broker/work_slices.py",
        "        while queue and not budget.is_over:\n",
        "        while queue:\n",
    ),
    Mutant(
        "bounds: memory is not returned when a client goes away",
        "a request holds memory until it is answered, and not longer",
        "tidelog/broker/session.py",
        "        if self._holds_memory:\n",
        "        if self._holds_memory and not self.is_cancelled:\n",
    ),
    Mutant(
        "bounds: any number of decoded requests",
        "queued.max.request.bytes bounds decoded requests too",
        "tidelog/broker/work_slices.py",
        "            if self._admitted_bytes and self._admitted_bytes + work.decoded_bytes > self._decoded_bytes_max:\n",
        "            if self._admitted_bytes < 0:\n",
    ),
    Mutant(
        "bounds: a partition is read as often as a large fetch names it",
        "repeating an element costs a client a few bytes and the broker no more",
        "tidelog/broker/handlers/fetch.py",
        "            named[topic.name, topic.topic_id, want.partition] = want\n",
        '            named[topic.name, number.to_bytes(16, "big"), want.partition] = want\n',
    ),
    Mutant(
        "bounds: a large fetch that waits misses what moved meanwhile",
        "a fetch is answered when there are records for it",
        "tidelog/broker/handlers/fetch.py",
        "        if not self._is_done:\n            self._moved[partition] = None\n            self._wake()\n",
        "        if not self._is_done:\n            self._wake()\n",
    ),
    Mutant(
        "bounds: a share fetch looks at as many batches as its client asks for",
        "the loop is left to others, whatever lies in the log",
        "tidelog/broker/share_partitions.py",
        "    while position + HEADER_SIZE <= end and len(stored) < batches_max:\n",
        "    while position + HEADER_SIZE <= end:\n",
    ),
    Mutant(
        "bounds: a share session has any number of partitions",
        "names of what does not exist take bounded memory",
        "tidelog/broker/share_sessions.py",
        "        if added > 0 and (had + added",
        "        if added < 0 and (had + added",
    ),
    Mutant(
        "bounds: a share session that is over counts",
        "a bound is on what is held, not on what was ever asked for",
        "tidelog/broker/share_sessions.py",
        "        del self._by_key[key]\n        self._partition_count -= len(session.partitions)\n",
        "        del self._by_key[key]\n",
    ),
    Mutant(
        "bounds: a batch that is wider than the window is handed out whole",
        "the states of a share partition take bounded memory",
        "tidelog/queues/share_partition.py",
        "            last = min(last, first + width_max - 1)\n",
        "            assert last >= first\n",
    ),
    Mutant(
        "bounds: a frame that stops in the middle has no place beyond the memory",
        "frames beyond the budget are together as large as the largest one",
        "tidelog/server/limits.py",
        "            self._reserved[holder] = missing_bytes\n",
        "            assert missing_bytes >= 0\n",
    ),
    Mutant(
        "bounds: the place of a connection that is gone stays taken",
        "nobody waits for ever for memory",
        "tidelog/server/limits.py",
        "        had_place = self._reserved.pop(holder, None) is not None\n",
        "        had_place = False\n",
    ),
    Mutant(
        "bounds: a byte now and then keeps the memory from others",
        "nobody waits for ever for memory",
        "tidelog/server/limits.py",
        "        return self._exempt_until if self._exempt is holder and self._waiting else None\n",
        "        return None\n",
    ),
)
