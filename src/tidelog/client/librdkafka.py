"""Opens every client of librdkafka: its settings, and the errors that are reported at once.

``config={...}`` of every class takes raw settings of librdkafka, which override our defaults. A setting that would break a
promise of the class is refused by name, with the reason: a setting must never be ignored silently.

librdkafka itself waits and retries forever where a person wants to be told. The constructors of the clients call
``wait_for_broker``. It waits, so that a broker that is just starting is found, but for less than ten seconds, after which nobody
believes that anything is happening. Where nobody listens at all, which is a wrong address more often than a starting broker, it
waits for less than two.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException

from tidelog.client.errors import BrokerUnavailable, InvalidArgument, from_kafka_error

CONNECT_TIMEOUT_SECONDS = 8.0
# How long addresses may refuse connections before that is the answer. A ``connect_timeout`` above the default waits for a broker
# that is known to come, and is not cut short.
REFUSED_SECONDS = 1.5
_PROBE_SECONDS = 0.2
_STEP_SECONDS = 0.5
_DEFAULT_PORT = 9092
# librdkafka's own default of message.max.bytes.
MESSAGE_BYTES_MAX_DEFAULT = 1_000_000

# These are for every client. librdkafka's log would mix with the application's output on stderr; what matters arrives as an
# error.
COMMON_DEFAULTS: Mapping[str, object] = {
    "log_level": 0,
    # The default, rebootstrap, forgets all known brokers when none answers for a while, and with them the requests that wait. The
    # known addresses are no worse than the bootstrap servers.
    "metadata.recovery.strategy": "none",
    # A broker that restarts is found again within this time, not after the default of 10 s.
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
}
_BOOTSTRAP_NAMES = ("bootstrap.servers", "metadata.broker.list")


def bootstrap_addresses(bootstrap: str | Sequence[str]) -> str:
    """The addresses as ``host:port,host:port``, from a string or a list."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    if not addresses or len(addresses) != len(texts):
        raise InvalidArgument(f"bootstrap servers are host:port, or a list of these: not {bootstrap!r}")
    return ",".join(addresses)


def librdkafka_configuration(
    bootstrap: str | Sequence[str],
    overrides: Mapping[str, object] | None,
    defaults: Mapping[str, object],
    *,
    refused: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Settings for confluent-kafka: the common ones, ``defaults`` over them, ``overrides`` over both.

    ``refused`` names the settings that the caller must not give, each with the reason or the alternative. The bootstrap servers
    are always refused. InvalidArgument names the setting.
    """
    given = dict(overrides or {})
    for name in given:
        if not isinstance(name, str):
            raise InvalidArgument(f"the keys of config= are names of librdkafka's settings: not {name!r}")
        if name in _BOOTSTRAP_NAMES:
            raise InvalidArgument(f"config= must not have {name}: it is the first argument")
        if refused and name in refused:
            raise InvalidArgument(f"config= must not have {name}: {refused[name]}")
    return {**COMMON_DEFAULTS, **defaults, **given, "bootstrap.servers": bootstrap_addresses(bootstrap)}


def message_bytes_max(configuration: Mapping[str, object]) -> int:
    """The largest message that a producer with these settings accepts; anything that librdkafka would refuse counts as unset."""
    text = str(configuration.get("message.max.bytes", ""))
    return int(text) if text.isascii() and text.isdigit() else MESSAGE_BYTES_MAX_DEFAULT


class ConnectionProblems:
    """An ``error_cb`` that keeps the last problem in librdkafka's words, because its timeouts do not give a reason."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: str | None = None

    def __call__(self, error: Any) -> None:
        self.last = error.str()


@contextmanager
def refused_settings() -> Iterator[None]:
    """Raise InvalidArgument for settings that librdkafka refuses when a client is made."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        raise InvalidArgument(f"librdkafka refuses the settings: {cause.str().strip()}", code=cause.code()) from error


def wait_for_broker(handle: Any, addresses: str, problems: ConnectionProblems, timeout: float = CONNECT_TIMEOUT_SECONDS) -> None:
    """Return as soon as a broker answers ``handle`` (any client of confluent-kafka). BrokerUnavailable names the addresses."""
    started = monotonic()
    deadline = started + timeout
    while True:
        try:
            handle.list_topics(timeout=max(0.001, min(_STEP_SECONDS, deadline - monotonic())))
        except KafkaException as error:
            # The problem arrives as an event, which only a poll delivers.
            handle.poll(0)
            typed = from_kafka_error(error.args[0], "connect", addresses, otherwise=BrokerUnavailable)
            if not typed.retriable:
                raise typed from error
            now = monotonic()
            is_refused = timeout <= CONNECT_TIMEOUT_SECONDS and now >= started + REFUSED_SECONDS and nobody_listens(addresses)
            if not is_refused and now < deadline:
                continue
            raise BrokerUnavailable(
                f"no broker answers at {addresses} ({problems.last or error.args[0].str()}): "
                "check the address and that the broker runs",
                code=typed.code,
            ) from error
        else:
            return


def nobody_listens(addresses: str) -> bool:
    """Whether every one of the addresses refuses connections or has no such host. One that is silent may be slow."""
    return all(_is_refused(address) for address in addresses.split(","))


def _is_refused(address: str) -> bool:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        where = (host or port).strip("[]"), int(port) if host else _DEFAULT_PORT
        socket.create_connection(where, timeout=_PROBE_SECONDS).close()
    except (ConnectionRefusedError, socket.gaierror):
        return True
    except (OSError, ValueError):
        return False
    return False
