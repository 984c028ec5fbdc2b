"""``make test-pythons``: the suites of broker, client and worker on every Python that this machine has, from 3.11 on.

Each gets an environment of its own under ``.venvs``. A free-threaded build is left out and named: Tidelog refuses it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
SUITES = ("tests/broker", "tests/client", "tests/worker")
ASK = "import sys, sysconfig; print(bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"


def find(version: str) -> str | None:
    """The interpreter of a version: of pyenv, or on the path."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(root.glob(f"{version}.*/bin/python3"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def run(version: str, interpreter: str) -> bool:
    environment = ROOT / ".venvs" / version
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", environment], check=True)
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", "constraints.txt"]
    subprocess.run([*install, "hatchling", "editables", "setuptools"], cwd=ROOT, check=True)
    subprocess.run([*install, "--no-build-isolation", "--editable", ".[dev]"], cwd=ROOT, check=True)
    return subprocess.run([python, "-m", "pytest", "-q", "-n", "2", *SUITES], cwd=ROOT, check=False).returncode == 0


def main() -> int:
    outcomes = {}
    for version in VERSIONS:
        interpreter = find(version)
        if interpreter is None:
            outcomes[version] = "is not on this machine"
        elif subprocess.run([interpreter, "-c", ASK], capture_output=True, text=True, check=True).stdout.strip() == "True":
            outcomes[version] = "is free-threaded, which Tidelog refuses"
        else:
            outcomes[version] = "passed" if run(version, interpreter) else "FAILED"
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome}")
    return 1 if "FAILED" in outcomes.values() else 0


if __name__ == "__main__":
    sys.exit(main())
