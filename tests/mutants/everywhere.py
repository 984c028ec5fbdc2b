"""Mutants that nobody picked: mutmut changes every operator, constant and call of a package, and the package's tests judge it.

    python -m tests.mutants.everywhere                       all packages, for hours
    python -m tests.mutants.everywhere records replication   these

Each package is judged by its own quick tests, not by the simulation: a mutant that only the simulation would find counts as
surviving, because a test beside the module should have found it. mutmut works on a copy of the tree below ``build/mutmut/``,
which stays there: ``mutmut show NAME`` in ``build/mutmut/PACKAGE`` prints a mutant that survived. PROCESSES (1) is how many are
tried at a time.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.mutants.plant import ROOT

WORK = ROOT / "build" / "mutmut"
COPIED = ("src", "tests", "simulation", "bench", "demo", "examples", "pyproject.toml")
KILLED = {"killed", "timeout", "suspicious", "segfault"}
MISSED = {"survived", "no tests"}


class MutatedPackage(NamedTuple):
    files: tuple[str, ...]
    tests: tuple[str, ...]


def _log_package(name: str) -> MutatedPackage:
    return MutatedPackage((f"src/tidelog/log/{name}/*",), (f"tests/log/{name}",))


PACKAGES = {
    "records": MutatedPackage(("src/tidelog/records/*",), ("tests/records",)),
    "replication": MutatedPackage(("src/tidelog/replication/*",), ("tests/replication",)),
    "coordinator": MutatedPackage(("src/tidelog/coordinator/*",), ("tests/coordinator",)),
    "log": MutatedPackage(
        tuple(f"src/tidelog/log/{name}.py" for name in ("append_check", "leader_epochs", "names", "partition_log", "reading")),
        (
            *(f"tests/log/test_{name}.py" for name in ("append_check", "leader_epochs", "names", "partition_log", "reading")),
            "tests/log/producers",
        ),
    ),
    "log-producers": _log_package("producers"),
    "log-segments": _log_package("segments"),
    "log-recovery": _log_package("recovery"),
    "log-retention": _log_package("retention"),
    "log-durability": _log_package("durability"),
    "log-compaction": _log_package("compaction"),
}
SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
also_copy = ["simulation", "bench", "demo", "examples"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist"]
use_git_change_detection = false
"""


def mutate(name: str, package: MutatedPackage) -> bool:
    """Print the score and the survivors of one package. False when mutmut did not come to its end."""
    directory = WORK / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for path in COPIED:
        source = ROOT / path
        if source.is_dir():
            shutil.copytree(source, directory / path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, directory / path)
    with (directory / "pyproject.toml").open("a") as settings:
        settings.write(SETTINGS.format(files=list(package.files), tests=list(package.tests)))
    with (directory / "mutmut.out").open("wb") as output:
        command = ["run", "--max-children", os.environ.get("PROCESSES", "1")]
        done = subprocess.run(
            [sys.executable, "-m", "mutmut", *command], cwd=directory, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    verdicts = _verdicts(directory)
    if done.returncode != 0 or not verdicts:
        print(f"{name}: mutmut ended with {done.returncode}; see {(directory / 'mutmut.out').relative_to(ROOT)}")
        return False
    missed = [mutant for mutant, verdict in verdicts.items() if verdict in MISSED]
    found = len(verdicts) - len(missed)
    print(f"{name}: {found} of {len(verdicts)} mutants found, {found / len(verdicts):.1%}", flush=True)
    for mutant in missed:
        print(f"    {mutant}: {verdicts[mutant]}")
    return True


def _verdicts(directory: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", "results", "--all", "true"], cwd=directory, capture_output=True, text=True, check=False
    )
    lines = re.findall(r"^\s*(\S+__mutmut_\d+): (.+)$", done.stdout, re.MULTILINE)
    return {mutant: verdict for mutant, verdict in lines if verdict in KILLED | MISSED}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    are_done = [mutate(name, PACKAGES[name]) for name in names or PACKAGES]
    return 0 if all(are_done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
