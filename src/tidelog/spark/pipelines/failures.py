"""Finds the cause of an error in Spark: the exception that our own code raised in some process, with its type, in one sentence.

Spark passes on an exception of Python as text: the traceback, in one of its own messages, in a message of Java's. The last line
of the traceback names the class, which is looked up and created again. An error that was never ours becomes ``SparkGaveUp`` with
the most telling line of Spark's message.
"""

import re
from importlib import import_module

from tidelog.client.errors import TidelogError
from tidelog.spark.pipelines.pipeline import PipelineFailed

# Where Spark continues with its own words: an error state, the state of the query, a Java stack, the next traceback.
_END = r"(?=\n\s*SQLSTATE|\n=== Streaming Query|\n\s+at |\n\nJVM stacktrace|\n\nThe above exception|\n\nDuring handling|\s*\Z)"
_OURS = re.compile(rf"^(tidelog(?:\.\w+)*)\.(\w+): (.*?){_END}", re.MULTILINE | re.DOTALL)
_OF_PYTHON = re.compile(rf"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+(\w[\w.]*(?:: .*?)?){_END}", re.DOTALL)
_OF_SPARK = re.compile(r"(?:terminated with exception: )?(?:\[[A-Z_.0-9]+\] )*(.+?)(?: SQLSTATE: \w+)*;?$")
_SHOWN_CHARACTERS_MAX = 500


class SparkGaveUp(PipelineFailed):
    """An error that is neither the user's nor ours; Spark's log has the rest of it."""


def error_behind(error: BaseException) -> TidelogError:
    """Return the typed error; ``error`` itself if it is one already."""
    return error if isinstance(error, TidelogError) else from_text(str(error))


def from_text(text: str) -> TidelogError:
    ours = list(_OURS.finditer(text))
    if ours:
        return _typed(ours[-1][1], ours[-1][2], _one_line(ours[-1][3]))
    of_python = _OF_PYTHON.findall(text)
    said = of_python[-1] if of_python else _line_of_spark(text)
    return SparkGaveUp(f"Spark gave up: {_one_line(said)[:_SHOWN_CHARACTERS_MAX]}")


def _typed(module: str, name: str, message: str) -> TidelogError:
    try:
        found = getattr(import_module(module), name, None)
    except ImportError:
        found = None
    if isinstance(found, type) and issubclass(found, TidelogError):
        error = found.__new__(found)
        # The exception is made without its own arguments, which the text does not contain.
        TidelogError.__init__(error, message)
        return error
    return PipelineFailed(message)


def _line_of_spark(text: str) -> str:
    first = text.strip().partition("\n")[0]
    _, is_of_query, rest = first.partition("terminated with exception: ")
    found = _OF_SPARK.match(rest if is_of_query else first)
    return found[1] if found else first


def _one_line(text: str) -> str:
    return " ".join(text.split())
