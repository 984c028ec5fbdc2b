"""kafka-python's own integration suite, run against a broker that is already there.

The suite comes with the source distribution of the version that ``constraints.txt`` pins for our own tests, and runs against that
distribution's client, in a child process with its own pytest settings. With ``KAFKA_URI`` it uses a running broker; what its
distribution lacks is in ``kafka_python_plugin``. Its tests are not touched.

The brokers are set up as the suite's own fixtures would set up theirs: node 0 (a test names it), four partitions by default,
short sessions of group members, topics made on first use. ``KAFKA_VERSION`` is what the clients take for granted instead of
asking the broker, so both brokers must serve all that Apache Kafka of that version does.
"""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compatibility.foreign.cache import cached, fetch_sdist
from tests.compatibility.foreign.kafka_python_plugin import RESULTS_VARIABLE, SUITE_VARIABLE
from tests.compatibility.foreign.report import Outcome, Result, Results

SUITE = "kafka_python"
PACKAGE = "kafka-python"
KAFKA_VERSION = "4.3"

ROOT = Path(__file__).resolve().parents[3]
TESTS = "test/integration"
RUN_SECONDS_MAX = 1_200.0
TEST_SECONDS_MAX = 120
# What is compared and read; the rest of a test's output can be had by running it alone.
OUTPUT_CHARACTERS_MAX = 4_000

KAFKA_CONFIGS = {
    "auto.create.topics.enable": "true",
    "num.partitions": "4",
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    # ACLs cannot be kept from who has none: the suite's clients and the broker's own.
    "super.users": "User:ANONYMOUS",
}
TIDELOG_CONFIGS = {
    "node.id": 0,
    "num.partitions": 4,
    "group.min.session.timeout.ms": 1000,
    # Said, as it is for Kafka: a test looks where the setting comes from. Port 0 is the port that is listened on.
    "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
}


class SuiteFailed(Exception):
    """The suite did not run; the message has its last words."""


@functools.cache
def suite_version() -> str:
    found = re.search(rf"^{PACKAGE}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if found is None:
        raise SuiteFailed(f"constraints.txt does not pin {PACKAGE}")
    return found[1]


def suite_folder() -> Path:
    """Fetched on first use; SuiteUnavailable when it cannot be."""
    version = suite_version()
    return cached(f"{PACKAGE}-{version}", lambda folder: fetch_sdist(PACKAGE, version, folder))


def run_suite(
    bootstrap_servers: str,
    tests: Sequence[str] = (),
    *,
    kafka_version: str = KAFKA_VERSION,
    seconds_max: float = RUN_SECONDS_MAX,
) -> Results:
    """Run these tests (``test_producer_integration.py::test_end_to_end[None]``), all without any, against one broker, with
    clients that take it for a Kafka of this version."""
    folder = suite_folder()
    with TemporaryDirectory(prefix="tidelog-foreign-") as scratch:
        results_path = Path(scratch) / "results"
        command = [sys.executable, "-P", "-m", "pytest", "-p", "tests.compatibility.foreign.kafka_python_plugin"]
        command += ["-p", "no:tidelog", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=short"]
        command += ["-o", "addopts=", "-o", "log_level=INFO", f"--timeout={TEST_SECONDS_MAX}", f"--basetemp={scratch}/pytest"]
        command += [f"{TESTS}/{test}" for test in tests] or [TESTS]
        environment = _environment(folder, bootstrap_servers, results_path, Path(scratch))
        output = _run(command, folder, {**environment, "KAFKA_VERSION": kafka_version}, seconds_max)
        results = read_results(results_path.read_text() if results_path.exists() else "")
    if not results:
        raise SuiteFailed(f"no test ran: {output[-OUTPUT_CHARACTERS_MAX:]}")
    return results


def read_results(text: str) -> Results:
    """Of the lines that the plugin writes; names without the folder that all tests are in."""
    whole_lines = text[: text.rfind("\n") + 1]
    told = [json.loads(line) for line in whole_lines.splitlines()]
    return {one["test"].removeprefix(f"{TESTS}/"): Result(Outcome(one["outcome"]), one["seconds"], one["words"]) for one in told}


def _environment(folder: Path, bootstrap_servers: str, results_path: Path, kafka_root: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "KAFKA_"))},
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        "KAFKA_URI": f"kafka://{bootstrap_servers}",
        # Where a Kafka would be started from: it must exist, and nothing is read from it.
        "KAFKA_ROOT": str(kafka_root),
        SUITE_VARIABLE: str(folder),
        RESULTS_VARIABLE: str(results_path),
    }


def _run(command: list[str], folder: Path, environment: dict[str, str], seconds_max: float) -> str:
    """What the run said; tests that fail are no failure of the run, and one that is cut short tells of the tests it got to."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds_max)
        except BaseException as error:
            process.kill()
            output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    return output
