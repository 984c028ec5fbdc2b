"""The same seed gives the same trace, whatever PYTHONHASHSEED says."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKLOAD = Path(__file__).parent / "determinism_workload.py"


def trace_hash(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(WORKLOAD), str(seed)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    first = trace_hash(7, "1")
    assert len(first.split()) == 2
    assert int(first.split()[1]) > 500
    assert trace_hash(7, "2") == first
    assert trace_hash(8, "1") != first
