"""Why a partition refuses, one type per cause; codes of the protocol are given elsewhere, at one boundary."""


class ReplicationError(Exception):
    """Base of what a partition refuses."""


class NotLeader(ReplicationError):
    """This broker does not lead the partition (any more)."""


class FencedLeaderEpoch(ReplicationError):
    """The client knows an older leader epoch: it must refresh its metadata."""


class UnknownLeaderEpoch(ReplicationError):
    """The client knows a newer leader epoch than this broker: it should try again."""


class NotEnoughReplicas(ReplicationError):
    """acks=all with fewer replicas in sync than ``min.insync.replicas``; nothing was written."""
