"""The way from a command to a cluster: Kafka's own protocol by librdkafka, so that every command works on any Kafka.

``Cluster`` is what the options ``--bootstrap`` and ``-X`` name. Before anything else it finds out whether somebody answers there,
because librdkafka itself waits and retries where a person wants to be told. Its errors become ``CommandFailed``, one line each.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidelog.cli.errors import CommandFailed

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = "9092"
# Together below ten seconds, after which nobody believes that anything is happening.
CONNECT_SECONDS_MAX = 3.0
METADATA_SECONDS_MAX = 6.0
REQUEST_SECONDS_MAX = 30.0

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap", "--bootstrap-server", "-b", metavar="HOST:PORT", help="A broker, or several with commas between them."
    ),
]
PropertiesOption = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="A property of librdkafka, say security.protocol=SASL_SSL; several are fine."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one document a line, for scripts.")]


class Cluster:
    def __init__(self, bootstrap: str, properties: Sequence[str] | None) -> None:
        self.bootstrap = bootstrap
        # Its own log would be lines between ours; what matters of it comes as an error.
        self._config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **read_pairs(properties or [], "-X")}

    def admin(self) -> Any:
        self.check_reachable()
        with self.errors():
            return AdminClient(self._config)

    def producer(self, config: Mapping[str, Any]) -> Any:
        self.check_reachable()
        with self.errors():
            return Producer({**self._config, **config})

    def consumer(self, config: Mapping[str, Any]) -> Any:
        """Without a group: nothing is committed, the partitions are assigned by hand. It must have a name all the same."""
        self.check_reachable()
        alone = {"group.id": "tidelog-cli", "enable.auto.commit": False, "enable.auto.offset.store": False}
        with self.errors():
            return Consumer({**self._config, **alone, **config})

    def metadata(self, client: Any) -> Any:
        """Of all topics: asking for one by name would create it where brokers do that."""
        with self.errors():
            return client.list_topics(timeout=METADATA_SECONDS_MAX)

    def topic(self, client: Any, name: str) -> Any:
        found = self.metadata(client).topics.get(name)
        if found is None:
            raise CommandFailed(f"there is no topic {name} at {self.bootstrap}")
        return found

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise CommandFailed(self.reason(error.args[0])) from error
        except ValueError as error:
            raise CommandFailed(str(error)) from error

    def reason(self, error: Any) -> str:
        lost = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE)
        if error.code() in lost:
            return f"no broker answers at {self.bootstrap}: {error.str()}"
        return str(error.str())

    def check_reachable(self) -> None:
        problems = []
        for address in self.bootstrap.split(","):
            problem = _connection_problem(address.strip())
            if problem is None:
                return
            problems.append(problem)
        raise CommandFailed(f"no broker answers at {self.bootstrap}: {', '.join(sorted(set(problems)))}")


def read_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` of each text."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint=option)
        pairs[name.strip()] = value
    return pairs


def _connection_problem(address: str) -> str | None:
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if not separator:
        host, port = port, DEFAULT_PORT
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS_MAX).close()
    except ValueError:
        return f"{port} is no port"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None
