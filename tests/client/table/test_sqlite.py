"""The file of a table, alone: rows and positions in one step, and iteration that keeps little in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.client.table.sqlite import SqliteStorage
from tidelog.client.table.storage import Identity, TableStorageError


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteStorage]:
    storage = SqliteStorage(str(tmp_path / "rows.db"))
    storage.reset(Identity("t", "id", "read_committed"), 7)
    yield storage
    storage.close()


def test_rows_and_positions_are_stored_together_or_not_at_all(file: SqliteStorage) -> None:
    file.apply([(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)], {0: 4}, None)
    assert (list(file.items()), file.progress()) == ([(b"a", b"2")], (("t", "id", "read_committed"), {0: 4}, 7))
    with pytest.raises(TableStorageError):
        # The last statement fails.
        file.apply([(b"a", b"3"), (b"c", b"1")], {0: None}, 9)  # type: ignore[dict-item]  # that is how
    progress = file.progress()
    assert progress is not None
    assert (list(file.items()), progress.positions, progress.caught_up_ms) == ([(b"a", b"2")], {0: 4}, 7)


def test_iteration_goes_page_by_page(file: SqliteStorage) -> None:
    rows = {b"%05d" % number: b"v" for number in range(1_234)}
    file.apply(list(rows.items()), {}, None)
    found = []
    for key, value in file.items():
        found.append((key, value))
        if len(found) == 600:
            file.apply([(b"00000", None), (b"99999", b"late")], {}, None)
    assert found == [*sorted(rows.items()), (b"99999", b"late")]
    assert file.count() == 1_234
