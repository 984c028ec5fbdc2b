"""Starts Spark's Java apart from the terminal: what it and its workers write goes to a file, and Ctrl-C reaches only the driver.

A terminal sends Ctrl-C to every process of the command. PySpark keeps Java from it, but not the Python workers, which would die
in the middle of a batch that the driver means to finish. In a session of its own none of them hears it. Java ends when this
process does, because its standard input is a pipe from here; ``end_java`` is for who wants to see it gone.
"""

import subprocess
from pathlib import Path

from pyspark import SparkContext
from pyspark.conf import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from tidelog.client.errors import TidelogError

_LAST_WORDS_LINES = 3
_END_SECONDS_MAX = 30.0


class JavaFailed(TidelogError):
    """Java was started and ended at once; says what it said."""


def start_apart(conf: SparkConf, log_file: Path) -> None:
    """The Spark context of this process, unless it has one."""
    if SparkContext._active_spark_context is not None:
        return
    with log_file.open("ab") as log:
        try:
            apart = {"stdout": log, "stderr": log, "start_new_session": True}
            gateway = launch_gateway(conf, apart)  # type: ignore[no-untyped-call]  # PySpark gives it no types
        except PySparkRuntimeError as error:
            raise JavaFailed(f"Spark's Java did not start: {_last_words(log_file)} (all of it: {log_file})") from error
    SparkContext(gateway=gateway, conf=conf)


def end_java() -> None:
    """Of this process, when its Spark is stopped: returns when Java has ended."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(log_file: Path) -> str:
    lines = [line.strip() for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    return "; ".join(lines[-_LAST_WORDS_LINES:]) or "it said nothing"
