"""Tables as pictures of text, at the widths that terminals have."""

import pytest

from tidelog.cli.output import table_lines
from tidelog.cli.queues import FIGURE_TITLES

TITLES = ("Topic", "Group", "Error", "Letters", "< 1 h", "< 1 d", "< 7 d", "Older", "Oldest")
ROWS = [
    ("orders.email.dlq", "email", "shop.errors.OutOfStock", 3, 3, 0, 0, 0, "2m 5s"),
    ("payments-of-customers.ledger.dlq", "ledger", "ConnectionRefusedError", 12_345, 0, 0, 12_345, 0, "6d 4h"),
]
PICTURES = {
    200: """
Topic                             Group   Error                   Letters  < 1 h  < 1 d  < 7 d  Older  Oldest
orders.email.dlq                  email   shop.errors.OutOfStock        3      3      0      0      0  2m 5s
payments-of-customers.ledger.dlq  ledger  ConnectionRefusedError    12345      0      0  12345      0  6d 4h
""",
    80: """
Topic    orders.email.dlq
Group    email
Error    shop.errors.OutOfStock
Letters  3
< 1 h    3
< 1 d    0
< 7 d    0
Older    0
Oldest   2m 5s

Topic    payments-of-customers.ledger.dlq
Group    ledger
Error    ConnectionRefusedError
Letters  12345
< 1 h    0
< 1 d    0
< 7 d    12345
Older    0
Oldest   6d 4h
""",
}
PICTURES[60] = PICTURES[80]
TEXTS = [("archive", "Topics to Delta tables, exactly once, in order of arrival"), ("audit", "Compares a table with its topic")]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_dead_letters(width: int) -> None:
    assert table_lines(TITLES, ROWS, width) == PICTURES[width].strip("\n").splitlines()


def test_texts_are_wrapped_between_words() -> None:
    assert table_lines(("Name", "What it does"), TEXTS, 40) == [
        "Name     What it does",
        "archive  Topics to Delta tables, exactly",
        "         once, in order of arrival",
        "audit    Compares a table with its topic",
    ]


@pytest.mark.parametrize("width", [1, 20, 60, 80, 100, 200])
def test_no_name_is_ever_broken(width: int) -> None:
    words = " ".join(table_lines(TITLES, ROWS, width)).split()
    for row in ROWS:
        assert all(str(cell).split()[0] in words for cell in row)


def test_the_figures_of_a_queue_fit_into_60_columns() -> None:
    assert table_lines(FIGURE_TITLES, [(0, 12_345, "-", 120, 3, "12m 30s"), (11, 0, 20_000, 0, 0, "0s")], 60) == [
        "Partition  Available  Delayed  Acquired  Redelivered  Oldest",
        "        0      12345  -             120            3  12m",
        "                                                      30s",
        "       11          0  20000           0            0  0s",
    ]


def test_an_empty_table_has_its_titles() -> None:
    assert table_lines(("Name", "Count"), [], 60) == ["Name  Count"]
    assert table_lines(("Name", "Count"), [], 4) == ["Name  Count"]
