"""Why the quorum refuses."""


class QuorumError(Exception):
    """Base of all errors of the metadata quorum."""


class QuorumStateUnusable(QuorumError):
    """The quorum-state file cannot be read: the node's vote is not known, and to guess it could elect two leaders."""


class NotQuorumLeader(QuorumError):
    """This node does not lead the quorum (yet)."""


class CorruptMetadataLog(QuorumError):
    """A committed batch of the metadata log fails its checksum or cannot be read."""
