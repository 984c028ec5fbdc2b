"""The reasons why a coordinator cannot answer now. Clients find the coordinator again, or just retry."""


class CoordinatorError(Exception):
    pass


class CoordinatorLoading(CoordinatorError):
    """The shard is being read from the log."""


class CoordinatorNotAvailable(CoordinatorError):
    """The shard cannot be used: the disk failed, or the topic does not exist yet."""


class NotCoordinator(CoordinatorError):
    """Another broker leads the shard's partition, or the shard was dropped before its decision was durable."""


class DecisionTooLarge(CoordinatorError):
    """The records of one decision do not fit into one batch. Nothing was written."""


class UnreadableShard(CoordinatorError):
    """The log of a shard holds something that this version cannot read."""
