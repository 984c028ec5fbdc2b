"""Apache Kafka as an outside judge: its broker and its DumpLogSegments, run beside our own code.

Kafka comes from Maven by package name: a generated pom names ``kafka_2.13`` and ``kafka-tools`` at one version, and
``dependency:copy-dependencies`` puts the jars into a cache outside the repository (``TIDELOG_CACHE``, else
``$XDG_CACHE_HOME/tidelog``, else ``~/.cache/tidelog``). Where Maven fetches from is the machine's own setting. The jars are
copied into a temporary folder which is renamed when it is whole, under a lock, so that a cut download never looks finished.

``ApacheKafka`` is one combined broker and controller on 127.0.0.1. Its metadata log lies in a directory of its own, so that the
data directory holds nothing but partitions, checkpoints and ``meta.properties``. The broker is a child process with a
small heap, tied to our life where the system has ``setpriv``; whoever starts it stops or kills it.

``KafkaUnavailable`` says what is missing; tests turn it into a skip with that reason.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import socket
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

KAFKA_VERSION = "4.3.1"
SLF4J_BINDING_VERSION = "2.25.4"
# A fixed id (16 bytes in base64url): directories made in one run can be opened in another.
CLUSTER_ID = "dGlkZWxvZy1rYWZrYS4uLg"
NODE_ID = 1

# For tests: little memory and a quick start. A benchmark of Kafka hands in the flags of Kafka's own start script instead.
SMALL_HEAP_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
DOWNLOAD_SECONDS_MAX = 600.0
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
TOOL_SECONDS_MAX = 120.0
STARTED_LINE = "Kafka Server started"

# kafka-tools would pull in Connect and its web server; DumpLogSegments needs none of it.
POM = f"""<?xml version="1.0" encoding="UTF-8"?>
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>{KAFKA_VERSION}</version>
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-shell</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{SLF4J_BINDING_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class KafkaUnavailable(Exception):
    """Java, Maven or the packages are missing; the message says which."""


class KafkaFailed(Exception):
    """Kafka is there but did not do what was asked; the message ends with its own words."""


def cache_root() -> Path:
    """Where everything goes that tests fetch; outside of the repository, and kept."""
    if cache := os.environ.get("TIDELOG_CACHE"):
        return Path(cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidelog"


def cache_directory() -> Path:
    return cache_root() / "kafka-4.3"


def find_program(name: str) -> str:
    """``java`` or ``mvn``: from JAVA_HOME or MAVEN_HOME when set, else from the path."""
    home = os.environ.get({"java": "JAVA_HOME", "mvn": "MAVEN_HOME"}[name])
    found = shutil.which(name, path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which(name)
    if found is None:
        raise KafkaUnavailable(f"{name} is not installed, so Apache Kafka cannot run here")
    return found


@functools.cache
def kafka_classpath() -> str:
    """The class path of Kafka and its tools; fetched on first use."""
    find_program("java")
    cache = cache_directory()
    # Another list of packages is another directory.
    jars = cache / f"jars-{KAFKA_VERSION}-{zlib.crc32(POM.encode()):08x}"
    if not jars.is_dir():
        with locked(cache):
            if not jars.is_dir():
                _fetch(cache, jars)
    return f"{jars}/*"


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """One fetch at a time on this machine, whatever number of test processes start together."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(cache: Path, jars: Path) -> None:
    maven = find_program("mvn")
    pom, partial = cache / "pom.xml", cache / "jars.partial"
    pom.write_text(POM)
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    try:
        result = _run([maven, "--batch-mode", "--quiet", "--file", str(pom), *goal], DOWNLOAD_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise KafkaUnavailable(f"Maven did not fetch Apache Kafka within {DOWNLOAD_SECONDS_MAX:.0f} s") from None
    if result.returncode != 0 or not partial.is_dir():
        raise KafkaUnavailable(f"Maven could not fetch Apache Kafka {KAFKA_VERSION}: {result.stdout[-2000:]}")
    partial.rename(jars)


def _run(command: list[str], seconds_max: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds_max,
        check=False,
    )


def java_command(
    main_class: str, *arguments: str, log_level: str = "ERROR", heap_flags: tuple[str, ...] = SMALL_HEAP_FLAGS
) -> list[str]:
    flags = (*heap_flags, f"-Dorg.apache.logging.log4j.level={log_level}")
    return [find_program("java"), *flags, "-cp", kafka_classpath(), main_class, *arguments]


def run_tool(main_class: str, *arguments: str) -> str:
    """Run one of Kafka's command-line classes to its end; its output, or KafkaFailed."""
    try:
        result = _run(java_command(main_class, *arguments), TOOL_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise KafkaFailed(f"{main_class} did not end within {TOOL_SECONDS_MAX:.0f} s") from None
    if result.returncode != 0:
        raise KafkaFailed(f"{main_class} ended with {result.returncode}: {result.stdout[-4000:]}")
    return result.stdout


def dump_log_segments(
    paths: Iterable[Path], *, records: bool = False, contents: bool = False, index_sanity_check: bool = False
) -> str:
    """What DumpLogSegments prints for these files: logs, indexes, snapshots.

    ``records`` decodes each record of a log, ``contents`` prints keys and values too, as they are: they may break lines.
    """
    arguments = ["--files", ",".join(str(path) for path in paths)]
    if records:
        arguments += ["--deep-iteration"]
    if contents:
        arguments += ["--print-data-log"]
    if index_sanity_check:
        arguments += ["--index-sanity-check"]
    return run_tool("org.apache.kafka.tools.DumpLogSegments", *arguments)


def wait_until(condition: Callable[[], bool], what: str, seconds_max: float = START_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise KafkaFailed(f"not within {seconds_max:.0f} s: {what}")
        time.sleep(0.05)


class ApacheKafka:
    """One Kafka broker, its own controller. ``root`` keeps its settings, log and metadata; ``data_directory`` the partitions.

    A data directory that has a ``meta.properties`` is opened as it is; it must name ``cluster_id`` and ``node_id``. Starting
    again on the same root keeps the metadata, and so the topics and their ids.
    """

    def __init__(
        self,
        root: Path,
        *,
        data_directory: Path | None = None,
        configs: Mapping[str, str] | None = None,
        cluster_id: str = CLUSTER_ID,
        node_id: int = NODE_ID,
        heap_flags: tuple[str, ...] = SMALL_HEAP_FLAGS,
    ) -> None:
        self.root = root
        self.data_directory = data_directory or root / "data"
        self.metadata_directory = root / "metadata"
        self.output_path = root / "kafka.out"
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.port = 0
        self._configs = dict(configs or {})
        self._heap_flags = heap_flags
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ApacheKafka":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        """What the broker wrote since its last start."""
        return self.output_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        if self._process is None:
            raise KafkaFailed("not started")
        return self._process.pid

    def start(self) -> None:
        self.format()
        self.launch()
        try:
            wait_until(self._has_started, "the broker answers")
        except BaseException:
            self.kill()
            raise

    def format(self) -> None:
        """Choose the ports, write the settings, and make the data directory ready for a first start."""
        if self.is_running:
            raise KafkaFailed("already started")
        self.root.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        properties = self.root / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._properties(_free_port()).items()))
        run_tool("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", self.cluster_id, "-c", str(properties))

    def launch(self) -> None:
        """Start the process on what was formatted; it answers later."""
        properties = self.root / "server.properties"
        command = java_command("kafka.Kafka", str(properties), log_level="INFO", heap_flags=self._heap_flags)
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with self.output_path.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.root
            )

    def stop(self) -> None:
        """Shut down cleanly: logs flushed and closed, the clean-shutdown mark written."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise KafkaFailed(f"no clean stop within {STOP_SECONDS_MAX:.0f} s: {self.output()[-2000:]}") from None
        self._process = None

    def kill(self) -> None:
        """SIGKILL: files stay as the last write left them, indexes preallocated, no clean-shutdown mark."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _has_started(self) -> bool:
        if not self.is_running:
            raise KafkaFailed(f"the broker ended while starting: {self.output()[-4000:]}")
        return STARTED_LINE in self.output() and _answers(self.port)

    def _properties(self, controller_port: int) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": f"{self.node_id}@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_directory),
            "metadata.log.dir": str(self.metadata_directory),
            "num.partitions": "1",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            **self._configs,
        }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(port: int) -> bool:
    """True when an ApiVersions v0 request gets a response without an error."""
    request = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            response = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(response) == 10 and response[4:] == struct.pack(">ih", 7, 0)
