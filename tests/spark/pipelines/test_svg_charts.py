"""Charts: the shapes fit the numbers, the words say the same, and empty ones are no error."""

import re
from itertools import pairwise

import pytest

from tests.spark.pipelines.made_reports import HOSTILE, read_page
from tidelog.spark.pipelines.svg_charts import Bar, Column, bar_chart, column_chart, rounded_up, scale, sparkline


def rects(made: str, kind: str) -> list[dict[str, float]]:
    found = [match for match in re.findall(r"<rect ([^>]*)/>", made) if f'class="{kind}"' in match]
    return [{name: float(value) for name, value in re.findall(r'(\w+)="([\d.]+)"', match)} for match in found]


def test_bars_are_as_long_as_their_share_of_the_greatest() -> None:
    made = bar_chart("By group", [Bar("email", 1200, "most"), Bar("billing", 300), Bar("audit", 1), Bar("none", 0)])
    assert [rect["width"] for rect in rects(made, "lower")] == [100, 25, 0.6, 0]
    reader = read_page(made)
    assert "1,200" in reader.text
    assert "email" in reader.text


def test_columns_stand_on_each_other_and_on_the_axis() -> None:
    made = column_chart(
        "Failures", [Column("9:00", "9:00: 3", 3, 1), Column("10:00", "none", 0), Column("11:00", "8", 0, 8)], ("a", "b")
    )
    assert rects(made, "lower") == [{"x": 0.09, "y": 62.5, "width": 0.82, "height": 37.5}]
    upper = rects(made, "upper")
    assert [(rect["y"], rect["height"]) for rect in upper] == [(50, 12.5), (0, 100)]
    assert 'viewBox="0 0 3 100"' in made


def test_a_chart_says_in_words_what_it_shows() -> None:
    made = column_chart(
        "Failures", [Column("9:00", "Monday 9:00: 3", 3), Column("10:00", "Monday 10:00: 5", 5)], ("waiting", "settled")
    )
    assert "Failures: 8 waiting, from 9:00 to 10:00. Most: Monday 10:00: 5" in read_page(made).text
    assert 'role="img"' in made
    assert "settled" not in made, "a part that nothing has is not in the legend"


def test_a_long_axis_has_few_labels_with_both_ends() -> None:
    made = column_chart("Failures", [Column(f"h{hour}", "", 1) for hour in range(72)], ("a", "b"))
    assert re.findall(r"<span>(h\d+)</span>", made) == ["h0", "h18", "h36", "h53", "h71"]


def test_nothing_to_show_is_said() -> None:
    assert "nothing failed" in read_page(bar_chart("By group", [], empty="nothing failed")).text
    assert "nothing failed" in read_page(column_chart("By hour", [], ("a", "b"), empty="nothing failed")).text
    assert read_page(sparkline([], "when")).tags == ["svg", "title"]
    assert rects(sparkline([0, 0], "when"), "lower") == []


@pytest.mark.parametrize("greatest", [0, 1, 2, 3, 7, 10, 11, 99, 100, 101, 450, 999, 1000, 123_456, 10**15 + 1])
def test_a_scale_ends_above_its_greatest_value_and_not_far(greatest: int) -> None:
    top = rounded_up(greatest)
    assert max(greatest, 2) <= top <= max(2 * greatest, 2)
    assert [float(label.replace(",", "")) for label in scale(top)] == [top, top / 2, 0]


def test_what_is_there_is_seen_however_small() -> None:
    made = column_chart("Failures", [Column("a", "", 1_000_000), Column("b", "", 1)], ("a", "b"))
    assert [rect["height"] for rect in rects(made, "lower")] == [100, 1]


@pytest.mark.parametrize("hostile", HOSTILE[:4])
def test_labels_are_text(hostile: str) -> None:
    made = bar_chart(hostile, [Bar(hostile, 1, hostile)]) + column_chart(
        hostile, [Column(hostile, hostile, 1)], (hostile, hostile)
    )
    assert not {"script", "img", "b"} & set(read_page(made).tags)


def test_scales_grow_with_values() -> None:
    tops = [rounded_up(value) for value in range(1, 2000)]
    assert all(one <= other for one, other in pairwise(tops))
