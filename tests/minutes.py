"""Prints where the minutes of a test run went: the time of all tests and fixtures by folder, and the slowest tests.

Times are wall-clock seconds as the test processes measured them: with two processes they add up to twice the length of the run.
"""

from collections import Counter, defaultdict

import pytest
from _pytest.terminal import TerminalReporter

FOLDERS_SHOWN = 20
TESTS_SHOWN = 10
# A run of a few tests needs no table.
SECONDS_WORTH_A_TABLE = 60.0


class Minutes:
    def __init__(self) -> None:
        self._seconds_by_test: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds_by_test[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        total = sum(self._seconds_by_test.values())
        if total < SECONDS_WORTH_A_TABLE:
            return
        seconds_by_folder: dict[str, float] = defaultdict(float)
        tests_by_folder: Counter[str] = Counter()
        for nodeid, seconds in self._seconds_by_test.items():
            folder = "/".join(nodeid.split("/")[:2])
            seconds_by_folder[folder] += seconds
            tests_by_folder[folder] += 1
        terminalreporter.section("where the time went")
        for folder, seconds in _largest(seconds_by_folder, FOLDERS_SHOWN):
            terminalreporter.write_line(f"{seconds:7.1f} s  {seconds / total:4.0%}  {tests_by_folder[folder]:5d} tests  {folder}")
        terminalreporter.write_line("the slowest tests:")
        for nodeid, seconds in _largest(self._seconds_by_test, TESTS_SHOWN):
            terminalreporter.write_line(f"{seconds:7.1f} s  {nodeid}")


def _largest(seconds: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])[:count]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Minutes(), "minutes")
