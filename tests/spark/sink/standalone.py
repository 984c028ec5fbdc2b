"""A standalone Spark cluster on this machine: a master and two workers, from the wheel, as a user would start it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.compatibility.apache_kafka import wait_until
from tidelog.spark.runtimes import java_home

START_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 30.0
WORKERS = 2
ROOT = str(Path(__file__).parents[3])
# For a driver on this machine.
CLUSTER_CONFIG = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": ROOT,
}
# A task that takes longer than the others is run a second time.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
}


class StandaloneCluster:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            words = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            output = self._start("master", words)
            pattern = re.compile(r"Starting Spark master at (spark://\S+)")
            wait_until(lambda: bool(pattern.search(output.read_text())), "the master is there", START_SECONDS_MAX)
            found = pattern.search(output.read_text())
            assert found is not None
            self.master = found[1]
            for number in range(WORKERS):
                work = str(self._directory / f"work-{number}")
                # Hosts of their own: speculation does not run a task twice on one.
                host = f"127.0.0.{number + 1}"
                worker = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g"]
                self._start(f"worker-{number}", [*worker, "--webui-port", "0", "--work-dir", work, self.master])
            wait_until(lambda: output.read_text().count("Registering worker") == WORKERS, "its workers are", START_SECONDS_MAX)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, words: list[str]) -> Path:
        path = self._directory / f"{name}.out"
        home = str(Path(pyspark.__file__).parent)
        environment = {
            **os.environ,
            "JAVA_HOME": java_home(os.environ),
            "SPARK_HOME": home,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": ROOT,
            "SPARK_DAEMON_MEMORY": "512m",
        }
        with path.open("wb") as output:
            command = [str(Path(home) / "bin" / "spark-class"), *words]
            self._processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output))
        return path
