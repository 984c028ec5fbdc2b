"""``make test-compiled``: the suites of the cores, the server and the simulation on the compiled build; ``make test`` runs some.

    python -m tests.release.compiled some -n 3          what follows is pytest's

The build is made once for a state of the sources, by the same hook that builds the wheel for users, and unpacked into the virtual
environment. A machine that cannot compile gets one line that says so, and ``make test`` goes on without.

Tests that replace a function or class of a compiled module are left out (``pure_python``): its code calls its own.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = Path(sys.prefix) / "build" / "compiled"
# What the unpacked build was made of.
STATE = PLACE.with_name("compiled.sources")
SOURCES = ("src", "hatch_build.py", "constraints.txt")
# The parts of pyproject.toml that say what is built, and how.
SETTINGS = ("build-system", "project")
TOOLS = ("hatch", "mypy", "tidelog")
SUITES: Mapping[str, Sequence[str]] = {
    "all": (
        "tests/broker",
        "tests/controller",
        "tests/coordinator",
        "tests/groups",
        "tests/log",
        "tests/metadata",
        "tests/queues",
        "tests/raft",
        "tests/records",
        "tests/replication",
        "tests/server",
        "tests/simulation",
        "tests/transactions",
        "tests/wire",
    ),
    # What a produce, a fetch, a heartbeat, a commit of offsets and a transaction run through, and the traces of all worlds.
    "some": (
        "tests/broker/handlers/test_fetch.py",
        "tests/broker/handlers/test_heartbeat.py",
        "tests/broker/handlers/test_offset_commit.py",
        "tests/broker/handlers/test_produce.py",
        "tests/broker/handlers/test_txn_offset_commit.py",
        "tests/broker/test_reference_cycles.py",
        "tests/broker/test_session.py",
        "tests/broker/transactions",
        "tests/coordinator",
        "tests/groups/classic",
        "tests/groups/test_offsets.py",
        "tests/log/segments",
        "tests/log/test_append_check.py",
        "tests/log/test_partition_log.py",
        "tests/log/test_reading.py",
        "tests/records",
        "tests/replication/test_in_sync_replicas.py",
        "tests/replication/test_partition.py",
        "tests/server/test_connection.py",
        "tests/server/test_reference_cycles.py",
        "tests/simulation/test_compiled_traces.py",
        "tests/transactions",
        "tests/wire/test_frames.py",
    ),
}
MARKS = "not pure_python and not soak and not apache_kafka and not foreign_suite"


class CannotCompile(Exception):
    """This machine has no C compiler, or not what it needs of Python."""


def compiled_build() -> Path:
    """The directory that PYTHONPATH has to name for processes that shall run the compiled build."""
    able = subprocess.run([sys.executable, "hatch_build.py"], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if able.returncode:
        raise CannotCompile(able.stderr.strip())
    sources = _state_of_the_sources()
    if not STATE.exists() or STATE.read_text() != sources:
        _build()
        STATE.write_text(sources)
    return PLACE


def environment(build: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(build)}


def _state_of_the_sources() -> str:
    """Of all of them: a constant of a module that is not compiled may be in the code of one that is."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    said = [settings[name] for name in SETTINGS] + [settings["tool"][name] for name in TOOLS]
    digest = hashlib.sha256(f"{sys.version}\0{json.dumps(said)}\0".encode())
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SOURCES]
    names = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    for path in sorted(ROOT / name for name in set(names) if name):
        if path.is_file():
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _build() -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    STATE.unlink(missing_ok=True)
    shutil.rmtree(PLACE, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, "."]
        subprocess.run(wheel, cwd=ROOT, env={**os.environ, "TIDELOG_COMPILED": "1"}, check=True)
        (built,) = Path(directory).glob("*.whl")
        subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", str(PLACE), str(built)], check=True)


def main(suite: str, arguments: Sequence[str]) -> int:
    try:
        build = compiled_build()
    except CannotCompile as error:
        print(f"The compiled build is not tested: {error}")
        return 0 if suite == "some" else 1
    which = "import sys; from tidelog.build import build_name; sys.exit(build_name() != 'compiled')"
    subprocess.run([sys.executable, "-P", "-c", which], cwd=ROOT, env=environment(build), check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", MARKS, *arguments, *SUITES[suite]]
    return subprocess.run(command, cwd=ROOT, env=environment(build), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
