"""A Spark session with the settings that Tidelog needs: ``spark = tidelog.spark.session()``.

The workers run this Python, in which Tidelog is installed, and Java is found automatically. Without a master (argument, setting,
or ``spark-submit --master``) Spark runs in this process on all cores and listens on this machine only.

With a log file, Java starts apart from the terminal: what it and its workers write goes to the file, and Ctrl-C reaches only the
driver. A terminal sends Ctrl-C to every process of the command. PySpark shields Java from it, but not the Python workers, which
would die in the middle of a batch that the driver means to finish; in a session of their own none of them receives it. Java ends
when this process does, because its standard input is a pipe from here. ``end_java`` waits until it is gone.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.conf import SparkConf
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidelog.client.errors import InvalidArgument, TidelogError
from tidelog.spark.runtimes import java_home, worker_python

LOCAL_MASTER = "local[*]"
_CONNECT_PREFIX = "sc://"

# There are as many partitions after a shuffle as cores: 200, the default, is for a cluster, and each costs a task per batch.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def session(
    *,
    app_name: str = "tidelog",
    master: str | None = None,
    config: Mapping[str, object] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """The session of this process, or a new one. ``config`` has Spark's settings, and wins over ours.

    With ``log_file``, what Java and the workers write goes there, and Ctrl-C reaches this process alone; under spark-submit,
    which has started Java already, it changes nothing. Raises JavaMissing, with what to do, when there is no Java that Spark can
    run on, and InvalidArgument for a server of Spark Connect.
    """
    # spark-submit has started Java already, and has put its settings where SparkConf finds them.
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    given = {name: str(value) for name, value in (config or {}).items()}
    settings = settings_of(master, given, SparkConf().get("spark.master") if is_submitted else None)
    if not is_submitted:
        os.environ["JAVA_HOME"] = java_home(os.environ)
        is_local = settings["spark.master"].startswith("local")
        os.environ.setdefault("PYSPARK_PYTHON", worker_python(os.environ) if is_local else sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if log_file is not None and not is_submitted:
        start_apart(SparkConf().setAppName(app_name).setAll(list(settings.items())), log_file)
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# A task costs 9 ms over Unix sockets, and 27 ms over TCP: Spark and its Python workers are always on the same machine. Filters
# become seeks only where Spark hands them over, which it does not by default. A Python worker that starts on a busy machine may
# need longer than Spark's 15 seconds to connect, and then Spark would fail the query.
_SETTINGS = {
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
    "spark.sql.python.filterPushdown.enabled": "true",
}


def settings_of(master: str | None, given: Mapping[str, str], submitted_master: str | None) -> dict[str, str]:
    remote = given.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    chosen = master or given.get("spark.master") or submitted_master or LOCAL_MASTER
    if remote or chosen.startswith(_CONNECT_PREFIX):
        raise InvalidArgument(
            f"{remote or chosen} is a server of Spark Connect, which sessions and pipelines of Tidelog do not use: give a "
            "master, such as local[*] or spark://host:7077, and unset SPARK_REMOTE and spark.remote"
        )
    settings = {"spark.master": chosen, **_SETTINGS}
    if chosen.startswith("local"):
        settings |= _LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
    return {**settings, **given, "spark.master": chosen}


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once. A session of Spark Connect has no context to ask: then its setting decides, or this machine."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return int(spark.conf.get("spark.default.parallelism", None) or os.cpu_count() or 1)


# -- the process of Java ------------------------------------------------------------------------------------------------------


_LAST_WORDS_LINES = 3
_END_SECONDS_MAX = 30.0


class JavaFailed(TidelogError):
    """Java was started and ended at once. The message has its output."""


def start_apart(conf: SparkConf, log_file: Path) -> None:
    """Start the Spark context of this process, unless it has one."""
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
    """Stop the Java of this process, whose Spark is stopped, and wait until it is gone."""
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
