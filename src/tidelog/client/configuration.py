"""The settings of a librdkafka client: our defaults, and the caller's over them.

``config={...}`` of every class takes raw settings of librdkafka, which override our defaults. A setting that would break a
promise of the class is refused by name, with the reason: a setting must never be ignored silently.
"""

from collections.abc import Mapping, Sequence

from tidelog.client.errors import InvalidArgument

# For every client. librdkafka's log would mix with the application's output on stderr; what matters arrives as an error.
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
