"""The benchmarks run to their end and report every figure; what they measure is for ``make bench``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--directory", str(directory), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


WORDS = {
    "append": ["append"],
    "commit": ["group commit"],
    "read": ["read at a random offset"],
    "partitions": ["open", "memory"],
    "recovery": ["recovery"],
    "recovery-point": ["recovery"],
    "compaction": ["compaction"],
    "records": ["CRC"],
    "validation": ["validate"],
    "broker-start": ["first acknowledged message", "idle memory"],
    "broker-requests": ["produce requests"],
    "broker-messages": ["messages of 100 B in", "messages of 100 B out"],
    "broker-fetches": ["a fetch of one small batch"],
    "group-rebalances": ["eager: stable again", "cooperative: longest pause", "KIP-848: longest pause"],
    "group-commits": ["commits of one offset"],
    "group-heartbeats": ["a heartbeat"],
    "group-loading": ["committed offsets"],
    "queue-engine": ["memory of 120,000 locks"],
    "transaction-cost": ["a commit every 100 ms"],
    "transaction-rate": ["transactions of one message"],
    "idempotence": ["idempotent producer"],
    "producer-ids": ["producer ids"],
    "idle-consumers": ["idle consumers"],
    "cold-history": ["reads cold history"],
    "compaction-latency": ["a log is compacted"],
    "toolkit-producer": ["producer: send"],
    "toolkit-consumer": ["consumer: poll"],
    "toolkit-memory": ["message in flight"],
    "toolkit-worker": ["a no-op handler"],
    "toolkit-worker-waiting": ["a handler that waits"],
    "toolkit-worker-memory": ["memory that it grows by"],
}


# One of each kind runs in every test run; the soak runs them all.
RUN_ALWAYS = (
    "append",
    "commit",
    "recovery",
    "broker-start",
    "broker-requests",
    "group-commits",
    "group-heartbeats",
    "transaction-rate",
    "toolkit-consumer",
)


def test_there_are_no_others() -> None:
    assert list(WORDS) == list(BENCHMARKS)


@pytest.mark.parametrize("name", [name if name in RUN_ALWAYS else pytest.param(name, marks=pytest.mark.soak) for name in WORDS])
def test_a_benchmark_runs_and_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, "--quick", "--json", "--only", name)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    whats = " ".join(row["what"] for row in rows)
    assert [word for word in WORDS[name] if word not in whats] == []
    # What memory grows by in a second may well be nothing, or less.
    assert all(row["ours"]["median"] > 0 for row in rows if "grows by" not in row["what"])
    assert {row["verdict"] for row in rows} == {"-"}
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "nonsense")
    assert done.returncode == 2
    assert "recovery-point" in done.stderr
