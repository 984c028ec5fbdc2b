"""Prometheus' text format, version 0.0.4: what a scraper reads.

    # HELP tidelog_requests_total Requests answered.
    # TYPE tidelog_requests_total counter
    tidelog_requests_total{api="Produce"} 12

Rendering is a loop of Python code. In another thread it would hold the interpreter for up to 5 ms at a time, and the loop with
it. So it calls ``pause`` after every ``LINES_PER_PAUSE`` lines (some tenths of a millisecond), which releases the interpreter.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from tidelog.metrics.histogram import HistogramValue
from tidelog.metrics.registry import Description, Family, Kind, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LINES_PER_PAUSE = 100

_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def render(families: Iterable[Family], pause: Callable[[], None]) -> bytes:
    chunks: list[str] = []
    lines: list[str] = []
    for line in _lines(families):
        lines.append(line)
        if len(lines) == LINES_PER_PAUSE:
            chunks.append("\n".join(lines))
            lines = []
            pause()
    # The last line has an end too.
    chunks.append("\n".join((*lines, "")))
    # A topic's name is ASCII, but a group's name may hold anything, even what UTF-8 cannot encode.
    return "\n".join(chunks).encode(errors="replace")


def _lines(families: Iterable[Family]) -> Iterator[str]:
    for description, series in families:
        yield f"# HELP {description.name} {description.help.translate(_HELP_ESCAPES)}"
        yield f"# TYPE {description.name} {description.kind.value}"
        for labels, value in series:
            if isinstance(value, HistogramValue):
                yield from _histogram_lines(description, labels, value)
            else:
                yield f"{description.name}{_braces(_pairs(description, labels))} {_number(value)}"


def _histogram_lines(description: Description, labels: Labels, value: HistogramValue) -> Iterator[str]:
    assert description.kind is Kind.HISTOGRAM
    name = description.name
    pairs = _pairs(description, labels)
    before = f"{pairs}," if pairs else ""
    for bound, count in zip(value.bounds, value.cumulated, strict=True):
        yield f'{name}_bucket{{{before}le="{_number(bound)}"}} {count}'
    yield f'{name}_bucket{{{before}le="+Inf"}} {value.total}'
    yield f"{name}_sum{_braces(pairs)} {_number(value.sum)}"
    yield f"{name}_count{_braces(pairs)} {value.total}"


def _pairs(description: Description, labels: Labels) -> str:
    return ",".join([f'{name}="{text.translate(_LABEL_ESCAPES)}"' for name, text in zip(description.labels, labels, strict=True)])


def _braces(pairs: str) -> str:
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
