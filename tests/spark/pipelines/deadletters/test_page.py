"""The page of dead letters: text never becomes markup and is always seen; charts fit the numbers and say the same in words; the
page has the numbers of the report, nothing that a letter could smuggle in, and the same bytes each time."""

import re
from itertools import pairwise
from typing import Any

import pytest

from tests.spark.pipelines.deadletters.made_reports import HOSTILE, NOW_MS, TOPIC, error, read_page, report
from tidelog.spark.pipelines.deadletters.page import (
    ChartBar,
    ChartColumn,
    cut,
    dead_letters_page,
    environment,
    rounded_up,
    scale,
    shown_bytes,
    visible,
)
from tidelog.spark.pipelines.deadletters.pipeline import outcome_of
from tidelog.spark.pipelines.deadletters.report import DAY_MS, HOUR_MS, HourCount, LetterTotals, NamedCount, span_of

CHARTS: Any = environment().get_template("charts.html").module


# -- texts --------------------------------------------------------------------------------------------------------------------


def rendered(content: str) -> str:
    return environment().from_string('<p title="{{ content }}">{{ content }}</p>').render(content=content)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_text_stays_text_as_a_child_and_as_an_attribute(hostile: str) -> None:
    reader = read_page(rendered(hostile))
    assert reader.tags == ["p"]
    assert reader.text == visible(hostile)
    assert reader.attributes == [("title", visible(hostile))]


def test_what_is_not_seen_becomes_a_sign() -> None:
    assert visible("a\x00b\x1bc\x7fd") == "a␀b␛c␡d"
    assert visible("1\u202e2\u200b3\u20284\udc805\x856") == "1�2�3�4�5�6"
    assert visible("one\r\ntwo\tthree\n") == "one\ntwo\tthree\n"
    assert visible("Grüße, 訂單 ✓") == "Grüße, 訂單 ✓"


def test_every_text_can_be_written_to_a_file() -> None:
    rendered("".join(chr(code) for code in range(0x11000))).encode("utf-8")
    rendered("\ud800\udfff").encode("utf-8")


def test_what_is_long_is_cut() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"


# -- charts -------------------------------------------------------------------------------------------------------------------


def rects(made: str, kind: str) -> list[dict[str, float]]:
    found = [match for match in re.findall(r"<rect ([^>]*)/>", made) if f'class="{kind}"' in match]
    return [{name: float(value) for name, value in re.findall(r'(\w+)="([\d.]+)"', match)} for match in found]


def test_bars_are_as_long_as_their_share_of_the_greatest() -> None:
    made = CHARTS.bar_chart(
        "By group", [ChartBar("email", 1200, "most"), ChartBar("billing", 300), ChartBar("audit", 1), ChartBar("none", 0)]
    )
    assert [rect["width"] for rect in rects(made, "lower")] == [100, 25, 0.6, 0]
    reader = read_page(made)
    assert "1,200" in reader.text
    assert "email" in reader.text


def test_columns_stand_on_each_other_and_on_the_axis() -> None:
    made = CHARTS.column_chart(
        "Failures",
        [ChartColumn("9:00", "9:00: 3", 3, 1), ChartColumn("10:00", "none", 0), ChartColumn("11:00", "8", 0, 8)],
        ("a", "b"),
    )
    assert rects(made, "lower") == [{"x": 0.09, "y": 62.5, "width": 0.82, "height": 37.5}]
    upper = rects(made, "upper")
    assert [(rect["y"], rect["height"]) for rect in upper] == [(50, 12.5), (0, 100)]
    assert 'viewBox="0 0 3 100"' in made


def test_a_chart_says_in_words_what_it_shows() -> None:
    made = CHARTS.column_chart(
        "Failures", [ChartColumn("9:00", "Monday 9:00: 3", 3), ChartColumn("10:00", "Monday 10:00: 5", 5)], ("waiting", "settled")
    )
    assert "Failures: 8 waiting, from 9:00 to 10:00. Most: Monday 10:00: 5" in read_page(made).text
    assert 'role="img"' in made
    assert "settled" not in made, "a part that nothing has is not in the legend"


def test_a_long_axis_has_few_labels_with_both_ends() -> None:
    made = CHARTS.column_chart("Failures", [ChartColumn(f"h{hour}", "", 1) for hour in range(72)], ("a", "b"))
    assert re.findall(r"<span>(h\d+)</span>", made) == ["h0", "h18", "h36", "h53", "h71"]


def test_nothing_to_show_is_said() -> None:
    assert "nothing failed" in read_page(CHARTS.bar_chart("By group", [], empty="nothing failed")).text
    assert "nothing failed" in read_page(CHARTS.column_chart("By hour", [], ("a", "b"), empty="nothing failed")).text
    assert read_page(CHARTS.sparkline([], "when")).tags == ["svg", "title"]
    assert rects(CHARTS.sparkline([0, 0], "when"), "lower") == []


@pytest.mark.parametrize("greatest", [0, 1, 2, 3, 7, 10, 11, 99, 100, 101, 450, 999, 1000, 123_456, 10**15 + 1])
def test_a_scale_ends_above_its_greatest_value_and_not_far(greatest: int) -> None:
    top = rounded_up(greatest)
    assert max(greatest, 2) <= top <= max(2 * greatest, 2)
    assert [float(label.replace(",", "")) for label in scale(top)] == [top, top / 2, 0]


def test_what_is_there_is_seen_however_small() -> None:
    made = CHARTS.column_chart("Failures", [ChartColumn("a", "", 1_000_000), ChartColumn("b", "", 1)], ("a", "b"))
    assert [rect["height"] for rect in rects(made, "lower")] == [100, 1]


@pytest.mark.parametrize("hostile", HOSTILE[:4])
def test_labels_are_text(hostile: str) -> None:
    made = CHARTS.bar_chart(hostile, [ChartBar(hostile, 1, hostile)]) + CHARTS.column_chart(
        hostile, [ChartColumn(hostile, hostile, 1)], (hostile, hostile)
    )
    assert not {"script", "img", "b"} & set(read_page(made).tags)


def test_scales_grow_with_values() -> None:
    tops = [rounded_up(value) for value in range(1, 2000)]
    assert all(one <= other for one, other in pairwise(tops))


# -- the page -----------------------------------------------------------------------------------------------------------------


TIMEOUT = {"exception_class": "TimeoutError", "waiting": 890, "replayable": 890, "first_failure_ms": NOW_MS - 30 * HOUR_MS}
HOSTILE_BYTES = [text.encode("utf-8", "surrogatepass") for text in HOSTILE]


def made(*, hides_values: bool = False, **given: Any) -> str:
    found = report(error(of=TIMEOUT, message="no answer within # s"), error(of={"waiting": 300}), **given)
    return dead_letters_page(found, hides_values=hides_values)


def test_the_numbers_come_first() -> None:
    text = read_page(made()).text
    for number in ("1,190", "Different errors2", "1 d 6 h", "Worth a replay890", "3 replayed, 1 discarded, 2 no longer in"):
        assert number in text
    assert text.index("Waiting") < text.index("When and where") < text.index("Errors, the most frequent first")


def test_errors_that_nobody_judged_are_not_kept_quiet() -> None:
    assert "Worth a replay890commands are below" in read_page(made()).text
    found = report(error(of=TIMEOUT, settled=4), totals=LetterTotals(waiting=1000, errors=3))
    text = read_page(dead_letters_page(found)).text
    assert "Worth a replay890of the 1 most frequent errors" in text
    assert "4 no longer waiting" in text, "retention may have taken some: that settles nothing"
    outcome = outcome_of(found, 0, 0, "page.html")
    assert outcome.summary == "1,000 dead letters wait in 1 topic, at least 890 worth a replay: open page.html"
    assert outcome.figures["errors not judged"] == "2, beyond the --top 1"


def test_an_error_has_its_verdict_its_command_and_one_letter() -> None:
    text = read_page(made()).text
    assert "Worth a replaythis kind of error passes by itself, and it is quiet" in text
    assert "tidelog dlq replay orders.email.dlq --error=TimeoutError --since" in text
    assert "Mend first" in text
    for part in (
        '{"order": 7}',
        "customer-42",
        "content-type: application/json",
        "orders[1]@4711",
        "tidelog dlq show orders.email.dlq 1:17",
    ):
        assert part in text
    assert text.count("tidelog dlq replay") == 1, "only where it is worth it"


def test_letters_that_the_command_takes_besides_are_named() -> None:
    text = read_page(dead_letters_page(report(error(of=TIMEOUT, taken=892)))).text
    assert "It takes 2 letters of other messages of this class too." in text


def test_values_can_be_left_out() -> None:
    text = read_page(made(hides_values=True)).text
    for part in ('{"order": 7}', "customer-42", "application/json"):
        assert part not in text
    assert "no more of item 5512" in text


def test_the_page_needs_no_network_and_runs_nothing() -> None:
    page = made()
    reader = read_page(page)
    assert any(name == "content" and value.startswith("default-src 'none';") for name, value in reader.attributes)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name in ("src", "href", "action")]
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "@import" not in page


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_letters_are_text(number: int) -> None:
    text, raw = HOSTILE[number], HOSTILE_BYTES[number]
    facts = {"exception_class": text, "topic": TOPIC, "versions": (text,)}
    letter = {
        "key": raw,
        "value": raw,
        "value_bytes": len(raw),
        "headers": ((text, raw),),
        "message": text,
        "traceback": text,
        "origin": text,
    }
    found = report(error(of=facts, like=letter, message=text, group=text))
    found = found._replace(groups=(NamedCount(text, 1),), origins=(NamedCount(text, 1),))
    page = dead_letters_page(found)
    assert not {"script", "img", "b"} & set(read_page(page).tags)
    assert len(page) < 100_000, "what is huge is cut"
    page.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", page)


def test_the_same_report_is_the_same_page() -> None:
    assert made() == made()


def test_nothing_waits() -> None:
    text = read_page(dead_letters_page(report(totals=LetterTotals(replayed=5)))).text
    assert "Every letter was dealt with: 5 replayed" in text
    assert "tidelog dlq depth --fail-above 0" in text
    lost = read_page(dead_letters_page(report(totals=LetterTotals(gone=500, replayed=1)))).text
    assert "500 letters left their topic before anybody dealt with them" in lost
    assert "no message has failed for good" in read_page(dead_letters_page(report(totals=LetterTotals()))).text
    assert "There are no dead-letter topics here" in read_page(dead_letters_page(report(totals=LetterTotals(), topics=()))).text


def test_many_names_become_the_first_and_the_rest() -> None:
    found = report(error())._replace(groups=tuple(NamedCount(f"group-{number}", 10) for number in range(12)))
    text = read_page(dead_letters_page(found)).text
    assert "group-7" in text
    assert "group-8" not in text
    assert "4 more40" in text


def test_more_errors_than_are_shown_are_told() -> None:
    assert "19 more with --top" in read_page(dead_letters_page(report(error(), totals=LetterTotals(waiting=10, errors=20)))).text


@pytest.mark.parametrize(
    ("content", "whole", "shown"),
    [
        (None, None, "(null)"),
        (b"", None, "(empty)"),
        ("grün".encode(), None, "grün"),
        ("grü".encode()[:-1], 10, "gr\n(10 bytes in all)"),
        (b"\xff\x00\x01", None, "ff 00 01\n(3 bytes, not UTF-8)"),
        (b"\xff" * 300, 9000, ("ff " * 256).strip() + " …\n(9,000 bytes, not UTF-8)"),
    ],
)
def test_bytes_as_a_reader_wants_them(content: bytes | None, whole: int | None, shown: str) -> None:
    assert shown_bytes(content, whole) == shown


def test_time_is_shown_by_hour_or_by_day() -> None:
    hour = NOW_MS - NOW_MS % HOUR_MS
    short = span_of([HourCount(hour - 2 * HOUR_MS, 1, 0)], NOW_MS)
    assert short.step_ms == HOUR_MS
    assert short.starts == tuple(range(hour - 23 * HOUR_MS, hour + 1, HOUR_MS))
    long = span_of([HourCount(hour - 100 * HOUR_MS, 1, 0), HourCount(hour, 1, 0)], NOW_MS)
    assert long.step_ms == DAY_MS
    assert len(long.starts) == 5
    assert long.fold({hour: 2, hour - HOUR_MS: 3, hour - 900 * HOUR_MS: 4}) == [0, 0, 0, 0, 5]


def test_times_that_cannot_be_are_left_out_of_the_chart() -> None:
    far = [HourCount(0, 1, 0), HourCount(NOW_MS + 999 * DAY_MS, 1, 0)]
    assert span_of(far, NOW_MS).starts == ()
    assert len(span_of([*far, HourCount(NOW_MS - NOW_MS % HOUR_MS, 1, 0)], NOW_MS).starts) == 24
