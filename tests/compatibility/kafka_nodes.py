"""Single nodes of Apache Kafka for clusters that are not Kafka's alone: a controller that observes a quorum of ours, and a quorum
that ours observes."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.compatibility.apache_kafka import STOP_SECONDS_MAX, KafkaFailed, _free_port, java_command, run_tool
from tidelog.log.recovery.formatting import read_format
from tidelog.ports.real_disk import RealDisk
from tidelog.testing.broker import Broker
from tidelog.testing.environment import HOST, BrokerEnvironment, reserve_port

STORAGE_TOOL = "kafka.tools.StorageTool"


class KafkaNode:
    """One Kafka process with these settings, on a directory of its own."""

    def __init__(self, root: Path, cluster_id: str, settings: Mapping[str, str], *format_options: str) -> None:
        self.root = root
        self.data = root / "data"
        self.metadata_directory = self.data / "__cluster_metadata-0"
        self._output_path = root / "kafka.out"
        self._process: subprocess.Popen[bytes] | None = None
        root.mkdir(parents=True)
        properties = {"log.dirs": str(self.data), **settings}
        self._properties = root / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        run_tool(STORAGE_TOOL, "format", "-t", cluster_id, "-c", str(self._properties), *format_options)

    def __enter__(self) -> "KafkaNode":
        command = java_command("kafka.Kafka", str(self._properties), log_level="INFO")
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with self._output_path.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)

    def check_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise KafkaFailed(f"the node ended: {self.output()[-4000:]}")

    def output(self) -> str:
        return self._output_path.read_text(errors="replace")


def controller_settings(node_id: int, port: int, **more: str) -> dict[str, str]:
    """A node that is nothing but a controller."""
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def free_port() -> int:
    return _free_port()


class _NodeEnvironment(BrokerEnvironment):
    """A broker with a second listener, under a name that the settings give a meaning."""

    def __init__(self, path: Path, listener: str, configs: Mapping[str, object]) -> None:
        super().__init__(path, configs)
        self._listener = listener
        self._second = reserve_port()

    @property
    def second_address(self) -> str:
        return f"{HOST}:{self._second.getsockname()[1]}"

    @property
    def settings(self) -> dict[str, str]:
        listeners = f"PLAINTEXT://{self.bootstrap_servers},{self._listener}://{self.second_address}"
        return {**super().settings, "listeners": listeners}

    def close(self) -> None:
        self._second.close()
        super().close()


class OurNode(Broker):
    def __init__(self, path: Path, listener: str, configs: Mapping[str, object]) -> None:
        self._environment = self._node = _NodeEnvironment(path, listener, {"controller.listener.names": "CONTROLLER", **configs})
        self._run = None
        self.log_lines = []

    @property
    def second_address(self) -> str:
        return self._node.second_address

    @property
    def settings(self) -> dict[str, str]:
        return self._node.settings

    @property
    def cluster_id(self) -> str:
        found = read_format(RealDisk(), self.data_path)
        assert found is not None
        return found.cluster_id


def our_voter(path: Path, configs: Mapping[str, object]) -> OurNode:
    """A broker of ours that is a quorum by itself, with a listener for other controllers as its second."""
    return OurNode(path, "CONTROLLER", configs)


def our_observer(path: Path, configs: Mapping[str, object]) -> OurNode:
    """A broker of ours that follows the quorum of the settings."""
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT"
    roles = {"process.roles": "broker", "inter.broker.listener.name": "INTERNAL", "listener.security.protocol.map": protocols}
    return OurNode(path, "INTERNAL", {**roles, **configs})
