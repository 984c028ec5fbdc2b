"""``Queue``: work that is shared message by message, on share groups (KIP-932).

- ``queue``: ``Queue``, what an application uses.
- ``job``: ``Job``, one message that this worker holds.
- ``leader_session``: the share session with one broker: fetching, settling and renewing over one connection.
- ``membership``: the heartbeats that keep this worker in its group, and what it is assigned.
- ``share_groups``: what administrators see and change of share groups: settings, backlog, start offsets.

The calls go through ``client.wire``, in plaintext only, because librdkafka has neither lock renewal nor a strict limit of
records.
"""

from tidelog.client.queue.job import Job
from tidelog.client.queue.queue import Queue

__all__ = ["Job", "Queue"]
