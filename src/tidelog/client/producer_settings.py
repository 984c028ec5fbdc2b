"""The producer's settings in librdkafka's names, and what its ``config=`` must not have."""

from collections.abc import Mapping

from tidelog.client.errors import InvalidArgument

ACKS: Mapping[str, int] = {"all": -1, "1": 1, "0": 0}
COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "none")

_FUTURES = "futures need every delivery report: use the returned future"
REFUSED: Mapping[str, str] = {
    "acks": "use the argument acks=, or acks= of send",
    "request.required.acks": "use the argument acks=, or acks= of send",
    "enable.idempotence": "use the argument idempotent=",
    "transactional.id": "use the argument transactional_id=",
    "partitioner": "use the argument partitioner=",
    "on_delivery": _FUTURES,
    "delivery.report.only.error": _FUTURES,
    "error_cb": "problems of the connection are told in the errors themselves",
}


def acks_level(acks: object) -> str:
    """``all``, ``1`` or ``0`` for what the caller wrote."""
    level = "all" if acks == -1 or acks == "-1" else str(acks)
    if isinstance(acks, bool) or level not in ACKS:
        raise InvalidArgument(f'acks is "all", 1 or 0: not {acks!r}')
    return level


def producer_defaults(
    *, linger_ms: float, batch_size: int, compression: str, buffer_bytes: int, buffer_messages: int, delivery_timeout_ms: int
) -> dict[str, object]:
    """The arguments under librdkafka's names."""
    if compression not in COMPRESSIONS:
        raise InvalidArgument(f"compression is one of {', '.join(COMPRESSIONS)}: not {compression!r}")
    if buffer_bytes < 1024 or buffer_messages < 1:
        raise InvalidArgument("the buffer has at least 1024 bytes and room for one message")
    return {
        "linger.ms": linger_ms,
        "batch.size": batch_size,
        "compression.type": compression,
        "queue.buffering.max.kbytes": buffer_bytes // 1024,
        "queue.buffering.max.messages": buffer_messages,
        "delivery.timeout.ms": delivery_timeout_ms,
        # As Java clients do; without a key at random.
        "partitioner": "murmur2_random",
        # How long a topic that is not there may still be on its way: a message to none fails within this, not after 30 s.
        "topic.metadata.propagation.max.ms": 10_000,
    }
