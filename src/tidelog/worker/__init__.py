"""Workers: a handler function and everything around it, on any Kafka.

``Worker`` is the class; ``Backoff``, ``CircuitBreaker`` and the deduplicators configure it; a handler
raises ``Retry`` or ``Reject`` to choose what becomes of its message.
docs/guides/retries-and-dead-letters.md is the guide. The modules:

* ``worker`` is what applications see, ``options`` its checked arguments, ``session`` one run of it;
* a message passes ``intake`` -> ``execution`` -> ``settlement`` -> ``outbox``, which ``pipeline`` connects; ``dispatch``
  chooses what is next, ``handler`` is one attempt, ``slots`` are the threads and tasks that make them;
* ``partitions``, ``offsets`` and ``key_order`` keep what is known of each partition;
* ``membership`` joins and leaves the group; ``retry_topics`` and ``retry_scan`` look after the retry topics;
* ``failures`` and ``breaker`` decide about failures; ``deduplicate`` recognises repeated messages; ``metrics`` counts.
"""

from tidelog.worker.breaker import CircuitBreaker
from tidelog.worker.deduplicate.redis import RedisDeduplicator
from tidelog.worker.deduplicate.sqlite import SqliteDeduplicator
from tidelog.worker.failures import Backoff, Reject, Retry
from tidelog.worker.metrics import WorkerMetrics
from tidelog.worker.worker import Worker

__all__ = ["Backoff", "CircuitBreaker", "RedisDeduplicator", "Reject", "Retry", "SqliteDeduplicator", "Worker", "WorkerMetrics"]
