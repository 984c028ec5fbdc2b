"""Text never becomes markup, and is always seen."""

import pytest

from tests.spark.pipelines.made_reports import HOSTILE, read_page
from tidelog.spark.pipelines.html_elements import Html, cut, element, join, text, visible


@pytest.mark.parametrize("hostile", HOSTILE)
def test_text_stays_text_as_a_child_and_as_an_attribute(hostile: str) -> None:
    made = element("p", hostile, title=hostile)
    reader = read_page(made)
    assert reader.tags == ["p"]
    assert reader.text == visible(hostile)
    assert reader.attributes == [("title", visible(hostile))]


def test_markup_stays_markup() -> None:
    assert element("p", element("b", "x"), None, "&") == "<p><b>x</b>&amp;</p>"
    assert join("<", Html("<br>")) == "&lt;<br>"


def test_attributes_are_named_as_python_can() -> None:
    made = element("div", class_="card", aria_hidden="true", hidden=True, title=None, draggable=False, width=3)
    assert made == '<div class="card" aria-hidden="true" hidden width="3"></div>'


def test_what_is_not_seen_becomes_a_sign() -> None:
    assert visible("a\x00b\x1bc\x7fd") == "a␀b␛c␡d"
    assert visible("1\u202e2\u200b3\u20284\udc805\x856") == "1�2�3�4�5�6"
    assert visible("one\r\ntwo\tthree\n") == "one\ntwo\tthree\n"
    assert visible("Grüße, 訂單 ✓") == "Grüße, 訂單 ✓"


def test_every_text_can_be_written_to_a_file() -> None:
    text("".join(chr(code) for code in range(0x11000))).encode("utf-8")
    text("\ud800\udfff").encode("utf-8")


def test_what_is_long_is_cut() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"
