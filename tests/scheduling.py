"""How pytest-xdist gives out the tests: one by one, but those that share something large to one process.

A Spark session is large and slow to start, and so is the syntax tree of the whole repository, and the processes would each have
one. pytest-xdist's own groups do nothing under pytest 9.2, whose ids are no plain text any more that a group could be added to.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# The first that fits counts. Two Spark sessions: one for all of them would be the longest way through a run.
IN_ONE_PROCESS = ("tests/spark/pipelines/", "tests/spark/", "tests/test_tidy.py::")
# Many and each of them short: while one process has its last long test, the other still has something to do.
LAST = ("tests/wire/",)


def scope_of(nodeid: str) -> str:
    """Tests of one scope run in one process, one after the other."""
    return next((directory for directory in IN_ONE_PROCESS if nodeid.startswith(directory)), nodeid)


def is_last(nodeid: str) -> bool:
    return nodeid.startswith(LAST)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist comes without types
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)
