"""Errors about tables. Each message is one sentence that says what to do."""

from tidelog.client.errors import TidelogError


class TableError(TidelogError):
    """The base: something about a table, and nothing was written to it."""


class TableMissing(TableError):
    """There is no table at this place."""


class WrongTable(TableError):
    """There is one, but of another kind, of another topic, or no Delta table at all."""


class WrongSchema(TableError):
    """A column has another type than the pipeline writes, or is missing and cannot be added."""


class TableConflict(TableError):
    """Another run wrote to the table meanwhile: of two runs of one pipeline on one table, one has to end."""


class TableUnwritable(TableError):
    """The file system does not let us write there."""
