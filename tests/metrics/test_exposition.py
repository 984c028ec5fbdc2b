"""The text, read by the library that the field reads it with."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tidelog.metrics.exposition import LINES_PER_PAUSE, render
from tidelog.metrics.histogram import COUNTS, Histogram
from tidelog.metrics.registry import Description, Family, Kind

NUMBERS = st.floats() | st.integers(-(2**53), 2**53)
# What a topic or a group may be called, and more: quotes, backslashes, line ends. No surrogates: they are no text.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def nothing() -> None:
    """No need to let others run."""


def read(families: list[Family]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = render(families, nothing).decode()
    assert text.endswith("\n")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(st.dictionaries(TEXTS, NUMBERS, max_size=5), TEXTS)
def test_values_and_labels_come_back(values: dict[str, float], documentation: str) -> None:
    description = Description("lag", Kind.GAUGE, documentation, ("group",), 5)
    found = read([Family(description, [((name,), value) for name, value in values.items()])])
    assert len(found) == len(values)
    for name, value in values.items():
        shown = found["lag", (("group", name),)]
        assert shown == value or (math.isnan(shown) and math.isnan(value))


def test_a_histogram() -> None:
    histogram = Histogram()
    for value in (1, 2, 70_000):
        histogram.observe(value)
    description = Description("logs", Kind.HISTOGRAM, "Logs.", ("disk",), 1)
    found = read([Family(description, [(("a",), histogram.value(COUNTS))])])
    assert found["logs_bucket", (("disk", "a"), ("le", "1"))] == 1
    assert found["logs_bucket", (("disk", "a"), ("le", "3"))] == 2
    assert found["logs_bucket", (("disk", "a"), ("le", "65535"))] == 2
    assert found["logs_bucket", (("disk", "a"), ("le", "+Inf"))] == 3
    assert found["logs_count", (("disk", "a"),)] == 3
    assert found["logs_sum", (("disk", "a"),)] == 70_003


def test_as_the_format_is_written() -> None:
    requests = Description("requests_total", Kind.COUNTER, "Requests\nanswered \\ sent.", ("api",), 1)
    families = [
        Family(requests, [(('a"\\\nb',), 12)]),
        Family(Description("seconds", Kind.GAUGE, "Seconds."), [((), 0.5)]),
        Family(Description("nothing", Kind.GAUGE, "Nothing."), []),
    ]
    assert render(families, nothing).decode() == (
        "# HELP requests_total Requests\\nanswered \\\\ sent.\n"
        "# TYPE requests_total counter\n"
        'requests_total{api="a\\"\\\\\\nb"} 12\n'
        "# HELP seconds Seconds.\n"
        "# TYPE seconds gauge\n"
        "seconds 0.5\n"
        "# HELP nothing Nothing.\n"
        "# TYPE nothing gauge\n"
    )


def test_it_lets_go_of_the_interpreter_between_lines() -> None:
    pauses: list[int] = []
    description = Description("size", Kind.GAUGE, "Size.", ("topic",), 10_000)
    series = [((str(number),), 1.0) for number in range(10 * LINES_PER_PAUSE)]
    text = render([Family(description, list(series))], lambda: pauses.append(1))
    assert len(pauses) == 10
    assert len(text.splitlines()) == 10 * LINES_PER_PAUSE + 2


def test_names_that_are_no_text_are_shown_all_the_same() -> None:
    description = Description("members", Kind.GAUGE, "Members.", ("group",), 1)
    assert b'group="a?b"' in render([Family(description, [(("a\udcffb",), 1)])], nothing)
