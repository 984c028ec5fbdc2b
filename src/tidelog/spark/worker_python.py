"""The Python that Spark's workers on this machine run: this one, behind a script that makes it start faster.

Spark puts ``pyspark.zip`` of its own before everything else on the workers' PYTHONPATH. Python keeps no compiled files of what is
in a zip: every new process compiles PySpark anew, a second of processor time, and every stream begins with a new process. The
script leaves Spark's zips out, so that the very same PySpark comes from where it is installed.
"""

import hashlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from tidelog.spark.scripts import cache_directory, write_script

_SCRIPT = """#!/bin/sh
# Python compiles what is in a zip anew in every process; the same modules are installed.
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
    """The program for PYSPARK_PYTHON: ``python`` itself where there is nothing to gain, or no place for a script."""
    home = Path(pyspark.__file__).parent
    is_installed = all(_is_file(package) for package in ("pyspark", "py4j"))
    # With another SPARK_HOME its zip may be of another version, and Java wants its own.
    is_own = Path(environment.get("SPARK_HOME") or home).resolve() == home.resolve()
    if os.name != "posix" or not (is_installed and is_own):
        return python
    text = _SCRIPT.format(library=shlex.quote(str(home / "python" / "lib")), python=shlex.quote(python))
    # Each Python has a script of its own: several may be in use at a time.
    name = f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    script = cache_directory(environment) / "worker-python" / name
    try:
        write_script(script, text)
    except OSError:
        return python
    return str(script)


def _is_file(package: str) -> bool:
    """And not in a zip."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None and Path(found.origin).is_file()
