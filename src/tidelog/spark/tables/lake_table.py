"""A Delta table as the driver sees it: its contents, its positions, its commits, and its rows in Spark.

**Positions.** A commit carries how far the table has come in the same atomic step as its rows: for each source by name
(``orders/3``) the offset that comes next, stored as Delta's own application transactions. Before a batch is written, the table is
asked for them, not a checkpoint: a batch that runs again after a crash, or under a new checkpoint, finds its rows in the table
and drops them. Two concurrent runs move the same position, and Delta refuses the second.

The table says what it is (``tidelog.kind``, ``tidelog.topic``, ...) in its own properties, and is refused where something else is
expected. Columns that a pipeline writes and the table lacks are added; columns of another type are refused.
"""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field as DeltaField
from deltalake.transaction import AddAction, RemoveAction

from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.data_files import DataFile, partition_text, write_files
from tidelog.spark.tables.errors import TableConflict, TableError, TableMissing, TableUnwritable, WrongSchema, WrongTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREFIX = "tidelog."
LOG = "_delta_log"
KIND = "kind"
# A position like those of sources: the number of times that rows were put into other files.
REWRITES = "tidelog/rewrites"
# Opening a table reads the commits since the last checkpoint of its log one by one: at most this many.
COMMITS_PER_CHECKPOINT = 25


class StoredFile(NamedTuple):
    """A file of the table."""

    path: str
    """The path relative to the table, as it is on disk."""
    size: int
    rows: int
    partition_values: Mapping[str, str | None]


class LakeTable:
    """Open it again for every use: ``deltalake`` reads a table's log once, and does not see what others commit afterwards."""

    def __init__(self, table: DeltaTable, place: Path) -> None:
        self._table = table
        self.place = place

    @classmethod
    def open(cls, place: str | Path, *, kind: str | None = None) -> "LakeTable":
        path = local_path(place)
        try:
            found = cls(DeltaTable(str(path)), path)
        except TableNotFoundError as error:
            hint = "it has files, but no _delta_log" if path.is_dir() and any(path.iterdir()) else "nothing is there"
            raise TableMissing(f"there is no table at {path}: {hint}") from error
        except DeltaError as error:
            raise WrongTable(f"the table at {path} cannot be opened: {error}") from error
        if kind is not None:
            found.check_identity({KIND: kind})
        return found

    @classmethod
    def ensure(
        cls, place: str | Path, columns: pa.Schema, *, partition_by: Sequence[str] = (), identity: Mapping[str, str]
    ) -> "LakeTable":
        """Open the table at this place; create it, or add the columns that it lacks. ``identity`` is what the table must be."""
        path = local_path(place)
        if not DeltaTable.is_deltatable(str(path)):
            return cls._create(path, columns, tuple(partition_by), identity)
        table = cls.open(path)
        table.check_identity(identity)
        if table.partition_by != tuple(partition_by):
            raise WrongTable(
                f"the table {path} is partitioned by {table.partition_by}, the pipeline writes by {tuple(partition_by)}"
            )
        missing = missing_columns(table.columns, columns, str(path))
        if not missing:
            return table
        try:
            table._table.alter.add_columns([_delta_field(field) for field in missing])
        except CommitFailedError as error:
            raise table.conflict(error) from error
        except (DeltaError, OSError) as error:
            raise TableUnwritable(f"the table {path} does not take column {missing[0].name}: {error}") from error
        return cls.open(path)

    @classmethod
    def _create(cls, path: Path, columns: pa.Schema, partition_by: tuple[str, ...], identity: Mapping[str, str]) -> "LakeTable":
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise WrongTable(f"{path} is not a table, and not empty: name a new directory")
        if outer := next((parent for parent in path.resolve().parents if (parent / LOG).is_dir()), None):
            raise WrongTable(f"{path} lies within the table {outer}, whose upkeep would remove its files: name another directory")
        properties = {f"{PREFIX}{name}": value for name, value in identity.items()}
        properties["delta.checkpointInterval"] = str(COMMITS_PER_CHECKPOINT)
        try:
            path.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                str(path),
                _nullable(columns),
                mode="ignore",
                partition_by=list(partition_by),
                configuration=properties,
                raise_if_key_not_exists=False,
            )
        except OSError as error:
            raise TableUnwritable(f"the table {path} cannot be created: {error.strerror or error}") from error
        except DeltaError as error:
            raise TableError(f"the table {path} cannot be created: {error}") from error
        table = cls.open(path)
        # Another run may have been faster.
        table.check_identity(identity)
        return table

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def identity(self) -> dict[str, str]:
        found = self._table.metadata().configuration
        return {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self._table.metadata().partition_columns)

    @property
    def delta(self) -> DeltaTable:
        """The underlying table, for what only some pipelines do: merge, compact, vacuum."""
        return self._table

    def check_identity(self, expected: Mapping[str, str]) -> None:
        found = self.identity
        for name, value in expected.items():
            if found.get(name) != value:
                is_what = f"of {name} {found[name]}" if name in found else f"without a {name}: no table of a Tidelog pipeline"
                raise WrongTable(f"the table {self.place} is {is_what}, not of {name} {value}: name another table")

    def position(self, name: str) -> int:
        """The next offset for this source; 0 before the first."""
        found = self._table.transaction_version(name)
        return 0 if found is None else found

    def append(
        self,
        files: Sequence[DataFile],
        positions: Mapping[str, int],
        *,
        expected: Mapping[str, int] | None = None,
        notes: Mapping[str, int] | None = None,
    ) -> None:
        """Commit files together with the positions that they bring the table to. Raises TableConflict when another run was first.

        ``expected`` is where the table stood when the rows were chosen. ``notes`` stay in the table's history.
        """
        for name, position in (expected or {}).items():
            if self.position(name) != position:
                raise self.conflict(f"{name} was at {position}, and is at {self.position(name)}")
        self._commit([_add(file, is_new=True) for file in files], commit_properties(positions, notes))

    def replace(self, old: Sequence[StoredFile], new: Sequence[DataFile]) -> None:
        """Replace files with others that have the same rows. Raises TableConflict when another run did that in the meantime.

        ``deltalake`` does not notice that two commits remove the same file, and both copies of its rows would stay (its own
        ``optimize.compact`` is no better): so whoever rewrites files counts it, and of two that count at once one is refused.
        """
        now_ms = _now_ms()
        removed = [RemoveAction(file.path, False, now_ms, file.size, dict(file.partition_values)) for file in old]
        properties = commit_properties({REWRITES: self.position(REWRITES) + 1})
        self._commit([*removed, *(_add(file, is_new=False) for file in new)], properties)

    def _commit(self, actions: list[Any], properties: CommitProperties) -> None:
        try:
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), list(self.partition_by), commit_properties=properties
            )
        except CommitFailedError as error:
            raise self.conflict(error) from error
        except (DeltaError, OSError) as error:
            raise TableUnwritable(f"nothing can be committed to the table {self.place}: {error}") from error

    def files(self) -> list[StoredFile]:
        """The files of this version, the oldest first."""
        found = pa.table(self._table.get_add_actions(flatten=True))
        columns = [found.column(name).to_pylist() for name in ("path", "size_bytes", "num_records", "modification_time")]
        names = self.partition_by
        values = [found.column(f"partition.{name}").to_pylist() for name in names]
        stored = [
            (modified, StoredFile(unquote(path), size, rows or 0, dict(zip(names, map(partition_text, by), strict=True))))
            for path, size, rows, modified, *by in zip(*columns, *values, strict=True)
        ]
        return [file for _, file in sorted(stored, key=lambda each: each[0])]

    def paths(self) -> list[str]:
        """Absolute paths of its files as they are on disk; ``deltalake`` percent-encodes blanks and umlauts."""
        return [str(self.place / file.path) for file in self.files()]

    def append_rows(self, rows: pa.Table, positions: Mapping[str, int]) -> None:
        """Append rows that the driver has: small results of a pipeline."""
        names = [name for name in self.columns.names if name in rows.column_names]
        files = write_files(rows.select(names).to_batches(), self.place, self.partition_by, ())
        self.append(files, positions)

    def conflict(self, reason: object) -> TableConflict:
        return TableConflict(
            f"another run wrote to the table {self.place} at the same time ({reason}): nothing of this batch was committed; "
            f"let one run alone write to it"
        )

    def frame(self, spark: "SparkSession", *, files: Sequence[str] | None = None) -> "DataFrame":
        """Its rows as of this version, read by Spark's own Parquet reader. ``files`` are some of its files, by absolute path."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(self.columns)
        paths = list(self.paths() if files is None else files)
        if not paths:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", str(self.place)).option("mergeSchema", "false")
        return reader.parquet(*paths).select(*schema.names)


def commit_properties(positions: Mapping[str, int], notes: Mapping[str, int] | None = None) -> CommitProperties:
    now_ms = _now_ms()
    return CommitProperties(
        app_transactions=[Transaction(name, position, now_ms) for name, position in positions.items()],
        custom_metadata={f"{PREFIX}{name}": value for name, value in (notes or {}).items()},
    )


def _now_ms() -> int:
    return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)


def _add(file: DataFile, *, is_new: bool) -> AddAction:
    """``is_new``: the file has rows that the table did not have."""
    return AddAction(file.path, file.size, file.partition_values, file.modified_ms, is_new, file.stats)


def local_path(place: str | Path) -> Path:
    text = str(place).removeprefix("file://")
    if "://" in text:
        raise WrongTable(f"{place}: a table is a directory that driver and executors see at the same path, not an address")
    if "%" in text:
        raise WrongTable(f"{place}: a path with % cannot be read back as it is written; name one without %")
    return Path(text).absolute()


def check_checkpoint_place(checkpoint: Path, place: Path) -> None:
    """Refuse a checkpoint inside the table: upkeep removes files that the table does not refer to, except names that begin with
    ``_``."""
    resolved, table = checkpoint.resolve(), place.resolve()
    for parent in (resolved, *resolved.parents):
        if parent == table or (parent / LOG).is_dir():
            below = resolved.relative_to(parent).parts
            if not below or not below[0].startswith("_"):
                raise InvalidArgument(
                    f"--checkpoint {checkpoint} lies within the table {parent}, whose upkeep would remove it: name another place"
                )


def _nullable(columns: pa.Schema) -> pa.Schema:
    """Make columns nullable: a column that is added later is null in older rows, so no column may be required."""
    return pa.schema([pa.field(field.name, field.type, nullable=True) for field in columns])


def _delta_field(field: pa.Field) -> DeltaField:
    (found,) = Schema.from_arrow(_nullable(pa.schema([field]))).fields
    return found


# -- columns ------------------------------------------------------------------------------------------------------------------


def missing_columns(table: pa.Schema, wanted: pa.Schema, place: str) -> list[pa.Field]:
    """The columns of ``wanted`` to add to the table. WrongSchema if a column that both have differs in type."""
    for field in wanted:
        if field.name in table.names and not is_same(table.field(field.name).type, field.type):
            found = table.field(field.name).type
            raise WrongSchema(
                f"the table {place} has column {field.name} as {found}, the pipeline writes {field.type}: "
                f"give the field another name, or write to a new table"
            )
    missing = [field for field in wanted if field.name not in table.names]
    by_lower = {name.lower(): name for name in table.names}
    for field in missing:
        if field.name.lower() in by_lower:
            raise WrongSchema(
                f"the table {place} has column {by_lower[field.name.lower()]}, and cannot have {field.name} beside it: Spark "
                "does not tell upper from lower case"
            )
    return missing


def is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the types are the same. The names inside lists and the width of their offsets do not count."""
    if pa.types.is_list(one) or pa.types.is_large_list(one):
        return (pa.types.is_list(other) or pa.types.is_large_list(other)) and is_same(one.value_type, other.value_type)
    if pa.types.is_struct(one):
        return (
            pa.types.is_struct(other)
            and [field.name for field in one] == [field.name for field in other]
            and all(is_same(mine.type, theirs.type) for mine, theirs in zip(one, other, strict=True))
        )
    return bool(_plain(one) == _plain(other))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind
