"""The programs on the page about pipelines that read tables: what they find, and that they cannot abort at their end."""

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import fs_handler

from tests.docs.shell import ROOT, blocks

PAGE = (ROOT / "docs" / "PIPELINES.md").read_text()
KEY = b"customer-42"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables that the programs name, in the current directory."""
    orders = pa.table({"id": [1, 2], "city": ["Kiel", None], "bad": [False, True], "error": [None, "no order"]})
    write_deltalake(tmp_path / "lake" / "orders", orders, partition_by=["bad"])
    keys = [KEY, b"another"]
    buckets = pa.array([zlib.crc32(key) % 16 for key in keys], pa.int32())
    write_deltalake(tmp_path / "lake" / "customers", pa.table({"key": keys, "bucket": buckets}), partition_by=["bucket"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tables_are_read_without_python_in_other_threads(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of pyarrow that needs the interpreter while that ends aborts the process, about one time in ten. So no file may be
    opened by Python code."""
    opened: list[str] = []

    def open_in_python(_: object, path: str) -> object:
        opened.append(path)
        raise AssertionError(f"{path} would be read by Python code in a thread of pyarrow")

    monkeypatch.setattr(fs_handler.DeltaStorageHandler, "open_input_file", open_in_python)
    programs = [block for block in blocks(PAGE, "python") if "to_pyarrow_table" in block]
    assert len(programs) == 2
    for program in programs:
        names: dict[str, Any] = {}
        exec(program, names)
        if "found" in names:
            assert names["found"].column("key").to_pylist() == [KEY]
    assert opened == []
    # The test can tell: by default, files are opened by Python code.
    with pytest.raises(AssertionError, match="would be read by Python code"):
        DeltaTable(lake / "lake" / "orders").to_pyarrow_table()
