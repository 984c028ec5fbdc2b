"""The stock connector, spark-sql-kafka-0-10: its jars by Maven, and a Spark of their version by pip, both kept in the cache.

The version of our own Spark is tried first. Where the registry lacks a jar of it, 4.0.0 is taken, with a pyspark of its own; then
the comparison is of two versions of Spark, and says so.
"""

import shutil
import subprocess
import sys
from typing import NamedTuple

import pyspark

from tests.compatibility.apache_kafka import KafkaUnavailable, cache_root, find_program, locked

OTHER_VERSION = "4.0.0"
FETCH_SECONDS_MAX = 900.0
_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog</groupId>
  <artifactId>stock-connector</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_2.13</artifactId>
      <version>{version}</version>
      <exclusions><exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
  </dependencies>
</project>
"""


class StockUnavailable(Exception):
    """Says what could not be had."""


class Stock(NamedTuple):
    python: str
    jars: tuple[str, ...]
    version: str


def stock_connector() -> Stock:
    problems = []
    for version in dict.fromkeys((pyspark.__version__, OTHER_VERSION)):
        try:
            jars = _jars(version)
            python = sys.executable if version == pyspark.__version__ else _python(version)
            return Stock(python, jars, version)
        except (StockUnavailable, KafkaUnavailable) as error:
            problems.append(str(error))
    raise StockUnavailable("; ".join(problems))


def _jars(version: str) -> tuple[str, ...]:
    cache = cache_root() / f"spark-kafka-{version}"
    with locked(cache):
        jars = cache / "jars"
        if not jars.is_dir():
            partial = cache / "jars.partial"
            shutil.rmtree(partial, ignore_errors=True)
            (cache / "pom.xml").write_text(_POM.format(version=version))
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
            _run(
                [find_program("mvn"), "--batch-mode", "--quiet", "--file", str(cache / "pom.xml"), *goal],
                f"the jars of {version}",
            )
            partial.rename(jars)
    # Spark has the rest of them itself.
    wanted = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
    return tuple(sorted(str(path) for path in jars.iterdir() if path.name.startswith(wanted)))


def _python(version: str) -> str:
    cache = cache_root() / f"pyspark-{version}"
    with locked(cache):
        environment = cache / "venv"
        if not environment.is_dir():
            partial = cache / "venv.partial"
            shutil.rmtree(partial, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(partial)], "a virtual environment")
            pip = [str(partial / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, f"pyspark=={version}"], f"pyspark {version}")
            partial.rename(environment)
    return str(environment / "bin" / "python")


def _run(command: list[str], what: str) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise StockUnavailable(f"{what} did not come within {FETCH_SECONDS_MAX:.0f} s") from None
    if ended.returncode != 0:
        lines = (ended.stdout + ended.stderr).strip().splitlines() or ["no word"]
        raise StockUnavailable(f"{what} cannot be had: {lines[0][-300:]}")
