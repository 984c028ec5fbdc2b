"""Planted bugs that let one request hold the loop, or take the memory. The tests of bounded work must find each of them."""

from tests.mutants.table import Mutant

BOUNDS_TESTS = ("tests/broker/test_work_slices.py", "tests/broker/handlers/test_bounded_work.py")

BOUNDS_MUTANTS = (
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
)
