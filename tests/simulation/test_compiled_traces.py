"""The same seeds give the same traces in both builds: pure Python, and compiled from the same source."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.run import WORLDS
from tidelog.build import build_name

ROOT = Path(__file__).parents[2]
SEEDS = "1-2"
PROGRAM = """
import sys
from simulation.run import main
from tidelog.build import build_name
print(build_name())
sys.exit(main(sys.argv[1:]))
"""


def start(world: str, python_path: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, "--world", world, "--seeds", SEEDS]
    environment = {**os.environ, "PYTHONPATH": python_path}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.compiled
@pytest.mark.parametrize("world", WORLDS)
def test_the_same_seeds_give_the_same_traces(world: str) -> None:
    assert build_name() == "compiled"
    pure, compiled = (start(world, path) for path in ("", os.environ["PYTHONPATH"]))
    pure_lines, compiled_lines = (process.communicate()[0].splitlines() for process in (pure, compiled))
    assert (pure_lines[0], compiled_lines[0]) == ("pure Python", "compiled")
    assert compiled_lines[1:] == pure_lines[1:]
    assert (pure.returncode, compiled.returncode) == (0, 0)
    assert len(pure_lines) == 3
