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


class NotEnoughReplicasAfterAppend(ReplicationError):
    """A write with acks=all was appended, and then fewer replicas were in sync than ``min.insync.replicas``. It may be committed
    later."""


class NotReplica(ReplicationError):
    """The broker that fetches is not a replica of the partition, as far as the leader knows."""


class StaleBrokerEpoch(ReplicationError):
    """A fetch of an earlier process of the follower: what it claims to have may be lost."""


class OffsetNotAvailable(ReplicationError):
    """A new leader does not know yet how far its predecessor's high watermark was."""
