"""Connects a command to a cluster through ``tidelog.client``, so that every command works on any Kafka.

``KafkaCluster`` stands for the options ``--bootstrap`` and ``-X``. Before it opens a client it checks that somebody listens at
the address, because librdkafka waits and retries where a person wants an answer. Errors become ``CommandFailed``, one line each.
"""

import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Annotated, Any

import typer

from tidelog.cli import hints, profile
from tidelog.cli.errors import CommandFailed
from tidelog.client.admin import Admin, IsolationName, PartitionBounds
from tidelog.client.errors import BrokerUnavailable, MessageTooLarge, TidelogError, TimedOut
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.raw_producer import DeliveryCallback, RawProducer
from tidelog.client.topic_partition import TopicPartition
from tidelog.client.wire.connection import check_protocol
from tidelog.client.wire.errors import ClientError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = "9092"
BOOTSTRAP_VARIABLE = "TIDELOG_BOOTSTRAP"
# How long all addresses together may take to accept a connection: a person wants to know whether it is the address.
CONNECT_SECONDS_MAX = 2.0
METADATA_SECONDS_MAX = 6.0
REQUEST_SECONDS_MAX = 30.0
NEW_TOPIC_SECONDS_MAX = 5.0
LOOK_AGAIN_SECONDS = 0.05
MILLISECONDS_MAX = 24 * 3_600_000


# The properties that belong to the address which the command uses; they are the profile's if the address is.
_properties: ContextVar[Mapping[str, str]] = ContextVar("properties", default=MappingProxyType({}))


def choose_bootstrap(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """``-b``, else ``TIDELOG_BOOTSTRAP``, else the profile in use, else the default."""
    _properties.set({})
    source = context.get_parameter_source(str(parameter.name))
    name = "" if source is None else source.name
    if name == "COMMANDLINE":
        hints.remember("-b", value)
    if name != "DEFAULT" or context.resilient_parsing:
        return value
    found = profile.current()
    if found is None:
        return value
    _properties.set(found.resolved())
    return found.bootstrap


def remember_properties(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        hints.remember("-X", value)
    return values


BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        help="A broker, or several separated by commas.",
        envvar=BOOTSTRAP_VARIABLE,
        callback=choose_bootstrap,
        show_default=f"the profile in use, or {DEFAULT_BOOTSTRAP}",
    ),
]
PropertiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="NAME=VALUE",
        help="A librdkafka property, such as security.protocol=SASL_SSL; repeatable.",
        callback=remember_properties,
    ),
]
PlaintextOption = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="NAME=VALUE",
        help="client.id, socket.timeout.ms or socket.connection.setup.timeout.ms. Plaintext only.",
        callback=remember_properties,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one document per line.")]

# Commands rely on these, whatever -X says: they commit by themselves, and see where partitions end.
_CONSUMER_SETTINGS = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True}
_BOOTSTRAP_PROPERTIES = ("bootstrap.servers", "metadata.broker.list")
# The librdkafka properties that the clients in plaintext understand, and the names of their arguments.
_PLAINTEXT_TIMEOUTS = {"socket.timeout.ms": "request_timeout_ms", "socket.connection.setup.timeout.ms": "connect_timeout_ms"}
_SECURITY_PREFIXES = ("ssl.", "sasl.", "enable.ssl.")


class KafkaCluster:
    """The cluster that a command line names. Each client that it opens has been checked to be reachable."""

    def __init__(self, bootstrap: str, properties: Sequence[str] | None) -> None:
        self.bootstrap = bootstrap
        self.properties = {**_properties.get(), **read_pairs(properties or [], "-X")}
        for name in _BOOTSTRAP_PROPERTIES:
            if name in self.properties:
                raise typer.BadParameter(f"give the address with --bootstrap instead of {name}", param_hint="-X")

    @property
    def isolation(self) -> IsolationName:
        """The isolation level of its consumers. Look up starts and ends with the same level: beyond the last stable offset a
        consumer that reads committed messages gets nothing, not even the end of the partition."""
        is_uncommitted = self.properties.get("isolation.level") == "read_uncommitted"
        return "read_uncommitted" if is_uncommitted else "read_committed"

    def admin(self) -> Admin:
        self.check_reachable()
        with self.errors():
            return Admin(
                self.bootstrap, timeout=REQUEST_SECONDS_MAX, connect_timeout=METADATA_SECONDS_MAX, config=self.properties
            )

    def producer(self, on_delivery: DeliveryCallback, settings: Mapping[str, object]) -> RawProducer:
        self.check_reachable()
        with self.errors():
            return RawProducer(self.bootstrap, {**self.properties, **settings}, on_delivery=on_delivery)

    def consumer(self, settings: Mapping[str, object] | None = None) -> RawConsumer:
        """Unless the settings name a group, nothing is committed."""
        self.check_reachable()
        with self.errors():
            return RawConsumer(self.bootstrap, {**self.properties, **_CONSUMER_SETTINGS, **(settings or {})})

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except TidelogError as error:
            raise CommandFailed(self.reason(error)) from error

    def reason(self, error: TidelogError) -> str:
        """The broker's or librdkafka's own words, without advice that is meant for callers of the Python API."""
        if isinstance(error, MessageTooLarge):
            error = self._with_topic_limit(error)
        if error.reason is None:
            return str(error)
        is_lost = isinstance(error, BrokerUnavailable | TimedOut)
        return f"no broker answers at {self.bootstrap}: {error.reason}" if is_lost else error.reason

    def _with_topic_limit(self, error: MessageTooLarge) -> MessageTooLarge:
        try:
            with self.admin() as admin:
                return admin.with_topic_limit(error)
        except (CommandFailed, TidelogError):
            # The limit is a help; the error is what counts.
            return error

    def check_reachable(self, seconds: float = CONNECT_SECONDS_MAX) -> None:
        """Raise CommandFailed unless one of the addresses accepts a connection within ``seconds``, which they share."""
        problems = []
        addresses = self.bootstrap.split(",")
        for address in addresses:
            problem = _connection_problem(address.strip(), seconds / len(addresses))
            if problem is None:
                return
            problems.append(problem)
        raise CommandFailed(
            f"no broker answers at {self.bootstrap}: {', '.join(sorted(set(problems)))}; "
            "check the address, or start a broker: tidelog start"
        )


def partitions_of(admin: Admin, topic: str, *, is_new: bool = False) -> list[TopicPartition]:
    """The partitions of a topic that exists. This asks the cluster for all topics, because asking for one could create it. Of
    several brokers, the one that is asked may hear of a topic that ``is_new`` a moment after the one that created it."""
    deadline = time.monotonic() + (NEW_TOPIC_SECONDS_MAX if is_new else 0.0)
    while not (found := admin.describe_cluster().partitions(topic)):
        if time.monotonic() >= deadline:
            raise no_such_topic(admin, topic)
        time.sleep(LOOK_AGAIN_SECONDS)
    return found


def no_such_topic(admin: Admin, topic: str) -> CommandFailed:
    return CommandFailed(f"there is no topic {topic} at {admin.addresses}; to see the topics: tidelog topics list")


def existing_bounds(admin: Admin, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionBounds]:
    """Log start offsets and high watermarks of those that exist: a committed offset may outlive its topic, and asking for a
    topic by name could create it again."""
    cluster = admin.describe_cluster()
    existing = {partition for name in {name for name, _ in partitions} for partition in cluster.partitions(name)}
    return admin.bounds([partition for partition in partitions if partition in existing], missing_ok=True)


def read_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Split each ``NAME=VALUE``."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint=option)
        pairs[name.strip()] = value
    return pairs


def plaintext_options(properties: Sequence[str] | None, subject: str) -> dict[str, Any]:
    """``-X`` as arguments of a client that speaks plaintext only; ``subject`` says what the command is about."""
    options: dict[str, Any] = {}
    for name, value in {**_properties.get(), **read_pairs(properties or [], "-X")}.items():
        if name == "security.protocol":
            try:
                check_protocol(value)
            except ClientError as error:
                raise CommandFailed(str(error)) from error
        elif name.startswith(_SECURITY_PREFIXES):
            raise CommandFailed(f"-X {name}: commands about {subject} speak plaintext only, neither TLS nor SASL")
        elif name == "client.id":
            options["client_id"] = value
        elif name in _PLAINTEXT_TIMEOUTS:
            options[_PLAINTEXT_TIMEOUTS[name]] = _milliseconds(name, value)
        else:
            known = ", ".join(["security.protocol", "client.id", *_PLAINTEXT_TIMEOUTS])
            raise CommandFailed(f"-X {name}: commands about {subject} know only {known}")
    return options


def choose_one(argument: str | None, option: str | None, what: str, hint: str = "") -> str:
    """A name that may be given as an argument or, as in Kafka's own tools, as an option."""
    if argument is not None and option is not None and argument != option:
        raise CommandFailed(f"the command line names two {what}s, {argument} and {option}; give one")
    chosen = argument or option
    if not chosen:
        raise CommandFailed(f"no {what} is given; add its name{hint}")
    return chosen


def _milliseconds(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MILLISECONDS_MAX):
        raise CommandFailed(f"-X {name}={text}: expected milliseconds, 1 to {MILLISECONDS_MAX}")
    return int(text)


def _connection_problem(address: str, seconds: float) -> str | None:
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if not separator:
        host, port = port, DEFAULT_PORT
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except ValueError:
        return f"{port} is not a port"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None
