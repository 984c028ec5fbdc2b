"""What kafka-python's integration suite needs to run from its source distribution; ``pytest -p`` loads it inside the suite's run.

The distribution lacks two files of the repository. ``test/__init__.py``: without it ``import test`` finds Python's own tests, so
the package is put together here. ``test/service.py``: it starts brokers; with ``KAFKA_URI`` the suite uses a running one and
only names it, so a class with its address serves.

Each test's outcome becomes a line of JSON in the file that ``RESULTS_VARIABLE`` names: a run that is cut short has told what it
got to.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

RESULTS_VARIABLE = "FOREIGN_SUITE_RESULTS"
SUITE_VARIABLE = "FOREIGN_SUITE_FOLDER"


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


class SpawnedService:
    """What would start a broker: there is none to start."""

    def __init__(self, *_: object) -> None:
        raise FileNotFoundError("the source distribution has no brokers to start")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before the suite's conftest is loaded, which imports both."""
    package = ModuleType("test")
    package.__path__ = [str(Path(os.environ[SUITE_VARIABLE]) / "test")]
    service = ModuleType("test.service")
    vars(service).update(ExternalService=ExternalService, SpawnedService=SpawnedService)
    sys.modules.update({"test": package, "test.service": service})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Of the phases of a test, the first that is not as it should be decides."""
    _phases.append(report)
    if report.when != "teardown":
        return
    decisive = next((phase for phase in _phases if not phase.passed), report)
    told = {
        "test": report.nodeid,
        "outcome": decisive.outcome,
        "seconds": sum(phase.duration for phase in _phases),
        "words": decisive.longreprtext,
    }
    _phases.clear()
    with Path(os.environ[RESULTS_VARIABLE]).open("a") as results:
        results.write(json.dumps(told) + "\n")


_phases: list[pytest.TestReport] = []
