"""``make release-check``: whether this tree can be released as the version that it names.

The version is in ``src/tidelog/__init__.py`` and nowhere else. A release is a commit with a clean tree, an entry of that version
in the changelog, and the tag ``v<version>``; its wheel is what ``make wheel`` built. The wheel is installed into an empty
environment, with its dependencies as ``constraints.txt`` pins them. There every module and every command has to load without an
extra, a broker has to start and pass a message on, and every command has to do its work in a narrow and in a wide terminal
(``walk.py``).
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cli.test_walk import WIDTHS
from tests.release.walk import walk
from tidelog import __version__

ROOT = Path(__file__).parents[2]
TRY = """
import importlib, pkgutil, subprocess, sys
from pathlib import Path

import tidelog
from tidelog import *
from tidelog import Consumer, Producer
from tidelog.cli.main import COMMANDS
from tidelog.testing import Broker

# What a reader of the wheel sees: the public classes, their types, and every module that needs no extra.
assert {*tidelog.__all__} <= {*dir(tidelog)} & {*globals()}
package = Path(tidelog.__file__).parent
assert (package / "py.typed").is_file() and (package / "__init__.pyi").is_file()
of_extras = {"pyspark", "pyarrow", "numpy", "deltalake", "jinja2", "redis", "opentelemetry", "pytest"}
for module in pkgutil.walk_packages(tidelog.__path__, "tidelog."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] in of_extras, f"{module.name}: {error}"
for name in COMMANDS:
    subprocess.run([sys.executable, "-m", "tidelog", name, "--help"], stdout=subprocess.DEVNULL, check=True)
with Broker() as broker:
    with Producer(broker.bootstrap_servers) as producer:
        producer.send("greetings", "hello").result(30)
    with Consumer(broker.bootstrap_servers, topics=["greetings"]) as consumer:
        assert [message.text() for message in consumer.poll(timeout=30)] == ["hello"]
"""


def problems_of(version: str, changelog: str, tags: list[str], status: str, wheels: list[str]) -> list[str]:
    """What is in the way, one line each."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        found.append(f"{version} is not a version such as 1.2.3 or 1.2.3rc1")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no entry '## [{version}] - YYYY-MM-DD': give what is under Unreleased that title")
    if f"v{version}" not in tags:
        found.append(f"this commit does not have the tag v{version}: git tag v{version}")
    if status.strip():
        found.append("the tree has changes that are not committed")
    if not any(name.startswith(f"tidelog-{version}-") for name in wheels):
        found.append(f"dist/ has no wheel of {version}: make wheel")
    return found


def try_wheel(wheel: Path) -> list[str]:
    """Install it where nothing else is, and use it; returns what went wrong with its commands."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        python = Path(directory) / "bin" / "python"
        words = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([python, *words, str(wheel)], check=True)
        subprocess.run([python, "-c", TRY], cwd=directory, check=True)
        program = Path(directory) / "bin" / "tidelog"
        subprocess.run([program, "--version"], cwd=directory, check=True)
        found = []
        for columns in WIDTHS:
            walked = Path(directory) / f"walked-{columns}"
            walked.mkdir()
            found += [
                f"tidelog {step} ended with {code} in a terminal of {columns} columns, which showed:\n{shown}"
                for step, code, shown in walk(program, columns, walked)
            ]
        return found


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    problems = problems_of(
        __version__,
        (ROOT / "CHANGELOG.md").read_text(),
        git("tag", "--points-at", "HEAD").split(),
        git("status", "--porcelain"),
        [wheel.name for wheel in wheels],
    )
    if wheels:
        wrong = try_wheel(wheels[-1])
        if not wrong:
            print(f"{wheels[-1].name} installs into an empty environment, and works")
        problems += wrong
    for problem in problems:
        print(f"not ready: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
