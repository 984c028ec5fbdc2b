"""A Spark session with the settings that Tidelog wants: ``spark = tidelog.spark.session()``.

The workers run this Python, in which Tidelog is installed, and Java is found by itself. Without a master (argument, setting, or
``spark-submit --master``) Spark runs in this process on all cores, and listens on this machine only.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.conf import SparkConf
from pyspark.sql import SparkSession

from tidelog.spark.java import java_home
from tidelog.spark.java_process import start_apart
from tidelog.spark.worker_python import worker_python

LOCAL_MASTER = "local[*]"

# As many partitions after a shuffle as there are cores: 200, the default, is for a cluster, and each costs a task per batch.
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
    where Java was there first, it changes nothing. JavaMissing, with what to do, when there is no Java that Spark can run on.
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


def settings_of(master: str | None, given: Mapping[str, str], submitted_master: str | None) -> dict[str, str]:
    chosen = master or given.get("spark.master") or submitted_master or LOCAL_MASTER
    settings = {"spark.master": chosen}
    if chosen.startswith("local"):
        settings |= _LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
    return {**settings, **given, "spark.master": chosen}
