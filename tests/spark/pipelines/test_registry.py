"""Pipelines by name."""

import pytest

from tidelog.spark.pipelines.registry import MODULES, UnknownPipeline, hint_for, load


def test_nearest_is_named() -> None:
    with pytest.raises(UnknownPipeline, match=r"^there is no pipeline archiv: did you mean archive\?$"):
        load("archiv")


def test_all_are_named_when_none_is_near() -> None:
    assert hint_for("zzz", MODULES) == f": there are {', '.join(MODULES)}"
