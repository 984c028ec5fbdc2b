"""The program of the page runs as it stands there, and shows what the page says of sessions and rows."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.pipelines.made_table import put_customers
from tidelog.spark import spark_session

PAGE = Path(__file__).parents[3] / "docs" / "PIPELINES.md"


def test_the_program_of_the_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (section,) = re.findall(r"^## enrich\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    put_customers(tmp_path / "lake" / "customers", {"ada": "Delft"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark_session, "session", lambda: spark)
    exec(compile(program, str(PAGE), "exec"), {})
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert shown[0] == ["customer", "started", "ended", "events", "sum_amount", "city", "_is_matched"]
    assert sorted((row[0], *row[3:]) for row in shown[1:]) == [
        ("ada", "2", "11", "Delft", "true"),
        ("bob", "1", "7", "NULL", "false"),
    ]
