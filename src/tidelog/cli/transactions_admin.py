"""The way from a command to the calls about transactions. Their errors become ``CommandFailed``, one line each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import read_pairs
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.client.wire.connection import check_protocol
from tidelog.client.wire.errors import ClientError

# Of librdkafka's properties, those that mean something to these calls, and what they are called there.
_TIMEOUTS = {"socket.timeout.ms": "request_timeout_ms", "socket.connection.setup.timeout.ms": "connect_timeout_ms"}
_SECURITY_PREFIXES = ("ssl.", "sasl.", "enable.ssl.")
MILLISECONDS_MAX = 24 * 3_600_000

PlaintextOption = Annotated[
    list[str] | None,
    typer.Option(
        "-X", metavar="NAME=VALUE", help="client.id, socket.timeout.ms or socket.connection.setup.timeout.ms. Plaintext only."
    ),
]


@contextmanager
def open_admin(bootstrap: str, properties: Sequence[str] | None) -> Iterator[TransactionAdmin]:
    pairs = read_pairs(properties or [], "-X")
    try:
        with TransactionAdmin(bootstrap, **plaintext_options(pairs, "transactions")) as admin:
            yield admin
    except ClientError as error:
        raise CommandFailed(str(error)) from error


def plaintext_options(pairs: dict[str, str], subject: str) -> dict[str, Any]:
    """Arguments of an admin that speaks plaintext only; ``subject``: what the commands are about."""
    options: dict[str, Any] = {}
    for name, value in pairs.items():
        if name == "security.protocol":
            check_protocol(value)
        elif name.startswith(_SECURITY_PREFIXES):
            raise CommandFailed(f"-X {name}: the commands about {subject} speak plaintext only, neither TLS nor SASL")
        elif name == "client.id":
            options["client_id"] = value
        elif name in _TIMEOUTS:
            options[_TIMEOUTS[name]] = _milliseconds(name, value)
        else:
            known = ", ".join(["security.protocol", "client.id", *_TIMEOUTS])
            raise CommandFailed(f"-X {name}: the commands about {subject} know only {known}")
    return options


def _milliseconds(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MILLISECONDS_MAX):
        raise CommandFailed(f"-X {name}={text}: expected milliseconds, 1 to {MILLISECONDS_MAX}")
    return int(text)


def choose_partitions(
    admin: TransactionAdmin, topics: Sequence[str], indexes: Sequence[int], broker_id: int | None = None
) -> list[tuple[str, int]]:
    """Those of the topics, or of all; only these indexes, when some are given; only those with a replica on the broker."""
    cluster = admin.metadata()
    if broker_id is not None and broker_id not in cluster.brokers:
        raise CommandFailed(f"there is no broker {broker_id}, only {', '.join(map(str, sorted(cluster.brokers)))}")
    chosen = [place for topic in topics for place in cluster.partitions_of(topic)] if topics else list(cluster.partitions)
    for topic in topics:
        for index in indexes:
            if (topic, index) not in cluster.partitions:
                raise CommandFailed(f"there is no partition {topic}-{index}")
    return [
        place
        for place in dict.fromkeys(chosen)
        if (not indexes or place[1] in indexes) and (broker_id is None or broker_id in cluster.partitions[place].replicas)
    ]
