"""What stops a write. Each message says what is so and what to do; none of these is tried again by itself."""

from tidelog.client.errors import TidelogError


class RowRefused(TidelogError):
    """A row that cannot be written as it is. Nothing of the batch becomes visible."""


class Superseded(TidelogError):
    """Another run of the same query, or of a write with the same id, has begun after this one."""


class BehindLedger(TidelogError):
    """The checkpoint is older than what was committed already."""


class TransactionLost(TidelogError):
    """A task's transaction is not open any more, and was not committed: the batch is to be done again."""


class BatchIncomplete(TidelogError):
    """The ledger has the batch, but one of its transactions was not committed: rows are missing, and nobody goes on over it."""


class LedgerUnusable(TidelogError):
    """The ledger's topic, or what is in it, is not what it should be."""
