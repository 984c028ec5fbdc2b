"""Workers: a handler function and everything around it, on any Kafka.

``Worker`` is the class; ``Backoff``, ``CircuitBreaker``, ``Reject`` and the deduplicators are what it is configured with. See
docs/guides/retries-and-dead-letters.md.
"""

from tidelog.worker.backoff import Backoff
from tidelog.worker.breaker import CircuitBreaker
from tidelog.worker.deduplicate.redis import RedisDeduplicator
from tidelog.worker.deduplicate.sqlite import SqliteDeduplicator
from tidelog.worker.failures import Reject
from tidelog.worker.metrics import WorkerMetrics
from tidelog.worker.worker import Worker

__all__ = ["Backoff", "CircuitBreaker", "RedisDeduplicator", "Reject", "SqliteDeduplicator", "Worker", "WorkerMetrics"]
