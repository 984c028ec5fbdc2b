"""The pipelines by name. A module is imported when it is asked for: each wants Spark, and help for one needs not all of them."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import cast

from tidelog.client.errors import InvalidArgument
from tidelog.spark.pipelines.pipeline import Pipeline

_PACKAGE = "tidelog.spark.pipelines"

# In the order in which lists show them.
MODULES = {
    name: f"{_PACKAGE}.{name}" for name in ("archive", "materialize", "replay", "deadletters", "metrics", "audit", "enrich")
}


class UnknownPipeline(InvalidArgument):
    """There is no pipeline of that name; says which one is nearest."""


def load(name: str) -> Pipeline:
    if name not in MODULES:
        raise UnknownPipeline(f"there is no pipeline {name}{hint_for(name, MODULES)}")
    return cast("Pipeline", import_module(MODULES[name]))


def hint_for(name: str, known: Iterable[str]) -> str:
    """What whoever typed this may have meant."""
    choices = list(known)
    nearest = get_close_matches(name, choices, n=1, cutoff=0.5)
    return f": did you mean {nearest[0]}?" if nearest else f": there are {', '.join(choices)}"
