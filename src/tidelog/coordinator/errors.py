"""Why a coordinator cannot answer now. Clients look for the coordinator again, or just try again."""


class CoordinatorError(Exception):
    pass


class CoordinatorLoading(CoordinatorError):
    """Its shard is being read from the log."""


class CoordinatorNotAvailable(CoordinatorError):
    """Its shard cannot be used: the disk fails, the topic is not there yet."""


class NotCoordinator(CoordinatorError):
    """Another broker leads the shard's partition; or the shard was dropped before what it decided was durable."""


class DecisionTooLarge(CoordinatorError):
    """The records of one decision do not fit into one batch. Nothing was written."""


class UnreadableShard(CoordinatorError):
    """The log of a shard holds what this version cannot read."""
