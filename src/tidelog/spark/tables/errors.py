"""Errors about tables. Each message is one sentence that says what to do."""

from tidelog.client.errors import TidelogError


class TableError(TidelogError):
    """The base class: something is wrong with a table, and nothing was written to it."""


class TableMissing(TableError):
    """There is no table at this place."""


class WrongTable(TableError):
    """There is a table, but of another kind or topic, or it is not a Delta table at all."""


class WrongSchema(TableError):
    """A column has another type than the pipeline writes, or is missing and cannot be added."""


class TableConflict(TableError):
    """Another run wrote to the table in the meantime: of two runs of one pipeline on one table, one has to end."""


class TableUnwritable(TableError):
    """The file system does not let us write there."""
