"""Deduplication in Redis, for workers on several machines.

    SET <prefix><group>:<id> running:<token> NX PX <lease>      before the handler
    SET <prefix><group>:<id> done PX <remember>                 after it succeeded
    delete it if the claim is still ours                        after it failed

**Its promise is weaker than that of a file.** Redis may lose marks: it evicts keys when memory is short, and a failover or a
crash loses what was not written yet. Such a message is handled again. A handler that takes longer than ``lease`` may run twice at
the same time. A message whose worker died is tried again when its lease has expired, not before. No message is ever lost: what is
not marked as done is handled.
"""

import secrets
from typing import Any

from tidelog.client.errors import InvalidArgument, install_extra
from tidelog.worker.deduplicate import Claim

DONE = b"done"
PREFIX = "tidelog:seen:"
LEASE_SECONDS = 60.0
# Delete only our own claim: the lease may have expired, and another worker may have claimed the message.
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisDeduplicator:
    """``Worker(..., deduplicate=RedisDeduplicator("redis://127.0.0.1:6379/0"))``, or a ``redis.Redis`` of your own.

    ``remember`` and ``lease`` are in seconds; ``remember`` defaults to what the retries need. Requires ``tidelog[redis]``.
    """

    def __init__(self, redis: Any, *, remember: float | None = None, lease: float = LEASE_SECONDS, prefix: str = PREFIX) -> None:
        if not lease > 0:
            raise InvalidArgument(f"deduplicate: lease= is a number of seconds above 0: not {lease}")
        self._redis = _connected(redis) if isinstance(redis, str) else redis
        self._is_ours = isinstance(redis, str)
        self._remember = remember
        self._lease_ms = int(lease * 1000)
        self._prefix = prefix
        self._group_prefix = prefix
        self._remember_ms = 0
        self._token = b"running:" + secrets.token_hex(8).encode("ascii")

    def open(self, group: str, remember_seconds: float) -> None:
        """Raises InvalidArgument if ``remember`` is too short, or Redis does not answer."""
        if self._remember is not None and self._remember < remember_seconds:
            raise InvalidArgument(
                f"deduplicate: remember={self._remember:g} s is too short: retries need at least {remember_seconds:g} s"
            )
        self._remember_ms = int((self._remember or remember_seconds) * 1000)
        self._group_prefix = f"{self._prefix}{group}:"
        try:
            self._redis.ping()
        except Exception as error:
            raise InvalidArgument(f"deduplicate: Redis does not answer: {error}") from error

    def claim(self, message_id: str) -> Claim:
        key = self._group_prefix + message_id
        if self._redis.set(key, self._token, nx=True, px=self._lease_ms):
            return Claim.OURS
        held = self._redis.get(key)
        if held is None:
            # The claim ended between the two requests: the next attempt decides.
            return Claim.BUSY
        content = held.encode() if isinstance(held, str) else held
        return Claim.DONE if content == DONE else Claim.BUSY

    def finish(self, message_id: str) -> None:
        self._redis.set(self._group_prefix + message_id, DONE, px=self._remember_ms)

    def release(self, message_id: str) -> None:
        self._redis.eval(_RELEASE, 1, self._group_prefix + message_id, self._token)

    def close(self) -> None:
        if self._is_ours:
            self._redis.close()


def _connected(url: str) -> Any:
    try:
        import redis
    except ImportError as error:
        raise InvalidArgument(f"deduplicate: the Redis client is not installed: {install_extra('redis')}") from error
    try:
        return redis.Redis.from_url(url)
    except ValueError as error:
        raise InvalidArgument(f"deduplicate: that is not the address of a Redis: {error}") from error
