"""Errors of the metadata quorum."""


class QuorumError(Exception):
    """Base of all errors of the metadata quorum."""


class QuorumStateUnusable(QuorumError):
    """The quorum-state file cannot be read. Without it the node does not know its vote, and guessing could elect two leaders."""


class VotersUnknown(QuorumError):
    """Neither the settings nor the log say who votes, although this node has led."""


class NotQuorumLeader(QuorumError):
    """This node does not lead the quorum (yet)."""


class CorruptMetadataLog(QuorumError):
    """A committed batch of the metadata log fails its checksum or cannot be read."""


class LeadershipLost(QuorumError):
    """This node stopped leading while a proposal waited: whether it is committed is for the next leader to say."""


class TooManyProposals(QuorumError):
    """More proposals wait than the quorum keeps. Nothing was written."""
