"""librdkafka's own test suite, run against a broker that is already there.

The test program is run once per test number, one at a time, never in its quick mode (which leaves out the sub-tests without a
word). The broker is named to it by a ``test.conf``; scripts of a Kafka distribution, which some tests call, are written for it
(``librdkafka_build.kafka_home``). The outcome of each test is read from the report that the program writes; one that crashes or
takes too long has failed. A test that has failed is run once more: some measure time in milliseconds.

Which tests count: those that talk to a broker. librdkafka has a mock of a cluster inside, and the suite marks tests that need
nothing else as local: those are not run. ``MOCK_ONLY`` are tests that the suite does not mark so, but which pass without any
broker: they cannot tell one broker from another, so they are not run either.

The test of administration holds the whole of it, access control included, and ends at the first failure. It counts by its
sub-tests, each in a run of its own: ``0081_admin:do_test_CreateTopics``.
"""

import functools
import json
import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.compatibility.foreign.librdkafka_build import (
    LIBRDKAFKA_VERSION,
    Program,
    kafka_home,
    one_replica_library,
    whole_program,
)
from tests.compatibility.foreign.report import Outcome, Result, Results, passed

SUITE = "librdkafka"
TITLE = f"{SUITE} {LIBRDKAFKA_VERSION}"
# What the tests may expect of the broker.
KAFKA_VERSION = "4.3.0"

# A loaded machine makes everything late: the suite's own time-outs are longer by this factor.
TIMEOUT_MULTIPLIER = 2.0
RUN_SECONDS_MAX = 900.0
OUTPUT_CHARACTERS_MAX = 6_000

# How the suite wants its brokers: most tests have topics made on first use, some make their own.
DEFAULT = "default"
NO_AUTO_CREATE = "noautocreate"
# Kafka's defaults otherwise: a first rebalance waits for more members, which some tests of groups count on.
COMMON_CONFIGS = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "3000"}
SCENARIOS = {
    DEFAULT: {**COMMON_CONFIGS, "auto.create.topics.enable": "true"},
    NO_AUTO_CREATE: {**COMMON_CONFIGS, "auto.create.topics.enable": "false"},
}
# Without these the tests of access control would be told that there is none, and one of topics is not let alone.
KAFKA_CONFIGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}

MOCK_ONLY = frozenset({"0068_produce_timeout", "0139_offset_validation_mock", "0150_telemetry_mock"})
# These make topics of three replicas, but use nothing of that: they get topics with one.
ONE_REPLICA = frozenset({"0098_consumer_txn", "0103_transactions", "0107_topic_recreate", "0111_delay_create_topics"})
# The test that counts by its sub-tests, and the file that it is in.
DIVIDED, DIVIDED_FILE = "0081_admin", "0081-admin.c"

# An entry ends where the next begins, or the table.
_TEST = re.compile(r"^    _TEST\((?P<name>[0-9]{4}_\w+),(?P<rest>.*?)(?=^    _TEST\(|^ *\{|\Z)", re.MULTILINE | re.DOTALL)
_SUB_TEST = re.compile(r"^(?:static\s+)?void\s+(do_test_\w+)\((?:(?!^\}).)*?SUB_TEST(?:_QUICK)?\(", re.MULTILINE | re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class SuiteTest(NamedTuple):
    name: str
    scenario: str

    @property
    def main(self) -> str:
        """As the suite's table has it."""
        return self.name.partition(":")[0]

    @property
    def sub_test(self) -> str:
        """Empty when all sub-tests are meant."""
        return self.name.partition(":")[2]


@functools.cache
def counted_tests() -> tuple[SuiteTest, ...]:
    """All tests that want a broker, in the suite's order."""
    folder = whole_program().folder
    return tuple(read_table((folder / "test.c").read_text(), (folder / DIVIDED_FILE).read_text()))


def read_table(table: str, divided: str) -> Iterator[SuiteTest]:
    """Those of the suite's table that are run by default, want a broker and use it."""
    for found in _TEST.finditer(table):
        name = found["name"]
        if name in MOCK_ONLY or re.search(r"\bTEST_F_(?:LOCAL|MANUAL)\b", found["rest"]):
            continue
        scenario = NO_AUTO_CREATE if NO_AUTO_CREATE in found["rest"] else DEFAULT
        if name == DIVIDED:
            yield from (SuiteTest(f"{name}:{sub_test}", scenario) for sub_test in _SUB_TEST.findall(divided))
        else:
            yield SuiteTest(name, scenario)


def run_suite(bootstrap_servers: str, scenario: str = DEFAULT, leave_out: Collection[str] = ()) -> Results:
    """Run the tests of one scenario against one broker that is set up for it; those of ``leave_out`` are told as skipped."""
    program = whole_program()
    results: dict[str, Result] = {}
    with TemporaryDirectory(prefix="tidelog-foreign-") as scratch:
        kafka_home(Path(scratch) / "kafka")
        for run in runs_of([test for test in counted_tests() if test.scenario == scenario]):
            results.update({test.name: Result(Outcome.SKIPPED, 0.0, "left out") for test in run if test.name in leave_out})
            wanted = [test for test in run if test.name not in leave_out]
            if wanted:
                once = run_tests(program, wanted, bootstrap_servers, Path(scratch))
                if any(result.outcome is Outcome.FAILED for result in once.values()):
                    again = run_tests(program, wanted, bootstrap_servers, Path(scratch))
                    once = {name: result if name in passed(once) else again[name] for name, result in once.items()}
                results.update(once)
    return results


def runs_of(tests: Sequence[SuiteTest]) -> list[list[SuiteTest]]:
    """Which tests are run together: the program takes numbers, and several tests may have the same."""
    runs: dict[str, list[SuiteTest]] = {}
    for test in tests:
        runs.setdefault(test.name if test.sub_test else test.name[:4], []).append(test)
    return list(runs.values())


def run_tests(
    program: Program, tests: Sequence[SuiteTest], bootstrap_servers: str, scratch: Path, *, at_once: int = 1
) -> dict[str, Result]:
    """Run these tests of one scenario, so many ``at_once``, in one process; with one sub-test there is no other test."""
    report = scratch / "report.json"
    report.unlink(missing_ok=True)
    settings = scratch / "test.conf"
    settings.write_text(f"bootstrap.servers={bootstrap_servers}\ntest.timeout.multiplier={TIMEOUT_MULTIPLIER}\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TEST", "SUBTESTS", "KAFKA_", "CI"))},
        "LD_LIBRARY_PATH": os.pathsep.join(str(library) for library in program.libraries),
        "RDKAFKA_TEST_CONF": str(settings),
        "KAFKA_PATH": str(scratch / "kafka"),
        "BROKERS": bootstrap_servers,
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_REPORT": str(report),
        "TEST_SCENARIO": tests[0].scenario,
        "TESTS": ",".join(test.name[:4] for test in tests),
    }
    if ONE_REPLICA & {test.name for test in tests}:
        environment["LD_PRELOAD"] = str(one_replica_library())
    if sub_test := tests[0].sub_test:
        environment["SUBTESTS"] = f"{sub_test}:"
    try:
        output = _run_program([str(program.executable), f"-p{at_once}", "-L"], program.folder, environment)
    finally:
        for statistics in program.folder.glob("stats_*.json"):
            statistics.unlink()
    return read_report(report.read_text() if report.exists() else "", tests, output)


def read_report(text: str, tests: Sequence[SuiteTest], output: str) -> dict[str, Result]:
    """What the program's report says of these tests; without a report all have failed."""
    told = json.loads(text)["tests"] if text else {}
    words = _COLOUR.sub("", output)
    results = {}
    for test in tests:
        one = told.get(test.main, {"state": "CRASHED", "duration": 0.0})
        outcome = {"PASSED": Outcome.PASSED, "SKIPPED": Outcome.SKIPPED}.get(one["state"], Outcome.FAILED)
        # A sub-test that is not begun, or that leaves itself out, lets its test pass.
        if outcome is Outcome.PASSED and test.sub_test and not re.search(rf"\[ {test.sub_test}:.*: PASS", words):
            outcome = Outcome.SKIPPED
        words_kept = "" if outcome is Outcome.PASSED else words[-OUTPUT_CHARACTERS_MAX:]
        results[test.name] = Result(outcome, float(one["duration"]), words_kept)
    return results


def _run_program(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What it said. Tests start children (Java programs), so all of its process group is ended with it."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    ) as process:
        try:
            output, _ = process.communicate(timeout=RUN_SECONDS_MAX)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output += f"\nended after {RUN_SECONDS_MAX:.0f} s\n"
    return output
