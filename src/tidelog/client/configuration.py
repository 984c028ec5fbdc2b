"""librdkafka's settings for one client: ours, then the caller's.

``config={...}`` of every class takes librdkafka's own settings, raw, and wins over our defaults. What would break a promise of
the class is refused, by name and with the reason: a setting must never be ignored silently.
"""

from collections.abc import Mapping, Sequence

from tidelog.client.errors import InvalidArgument

# For every client. Its log would be lines on stderr between the application's own; what matters of it comes as an error.
COMMON_DEFAULTS: Mapping[str, object] = {
    "log_level": 0,
    # The default, rebootstrap, forgets every learned broker when none answers for a while, and with it what was being waited
    # for. The addresses that were learned are no worse than those that were given.
    "metadata.recovery.strategy": "none",
    # A broker that restarts is found again within this, not after the default of 10 s.
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
}
_BOOTSTRAP_NAMES = ("bootstrap.servers", "metadata.broker.list")


def bootstrap_addresses(bootstrap: str | Sequence[str]) -> str:
    """``host:port``, several with commas between them, whichever way they were given."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    if not addresses or len(addresses) != len(texts):
        raise InvalidArgument(f"bootstrap servers are host:port, or several of them: not {bootstrap!r}")
    return ",".join(addresses)


def librdkafka_configuration(
    bootstrap: str | Sequence[str],
    overrides: Mapping[str, object] | None,
    defaults: Mapping[str, object],
    *,
    refused: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """What to hand to confluent-kafka: the common settings, ``defaults`` over them, ``overrides`` over both.

    ``refused`` has the settings that the caller must not give, each with what to do instead; the bootstrap servers are always
    among them. InvalidArgument names the setting.
    """
    given = dict(overrides or {})
    for name in given:
        if not isinstance(name, str):
            raise InvalidArgument(f"config= has names of librdkafka's settings as keys: not {name!r}")
        if name in _BOOTSTRAP_NAMES:
            raise InvalidArgument(f"config= must not have {name}: it is the first argument")
        if refused and name in refused:
            raise InvalidArgument(f"config= must not have {name}: {refused[name]}")
    return {**COMMON_DEFAULTS, **defaults, **given, "bootstrap.servers": bootstrap_addresses(bootstrap)}
