"""The benchmarks run to their end and report every figure; what they measure is for ``make bench``."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--directory", str(directory), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_benchmark_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run(tmp_path, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    whats = " ".join(row["what"] for row in rows)
    topics = ("append", "group commit", "read at a random offset", "open", "memory", "recovery", "compaction", "CRC", "broker")
    assert [topic for topic in topics if topic not in whats] == []
    assert all(row["ours"]["median"] > 0 for row in rows)
    assert {row["verdict"] for row in rows} == {"-"}
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "nonsense")
    assert done.returncode == 2
    assert "recovery-point" in done.stderr
