"""The reasons why a partition refuses a request, one exception type per cause. They become error codes elsewhere, in one
place.
"""


class ReplicationError(Exception):
    """Base of all errors of a partition."""


class NotLeader(ReplicationError):
    """This broker does not lead the partition (any more)."""


class FencedLeaderEpoch(ReplicationError):
    """The client knows an older leader epoch: it must refresh its metadata."""


class UnknownLeaderEpoch(ReplicationError):
    """The client knows a newer leader epoch than this broker: it should retry."""


class NotEnoughReplicas(ReplicationError):
    """A write with acks=all found fewer replicas in sync than ``min.insync.replicas``; nothing was written."""
