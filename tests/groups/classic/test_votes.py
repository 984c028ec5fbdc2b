"""Which protocol a generation uses."""

import pytest

from tidelog.groups.classic.group import ClassicMember, select_protocol


def members(*preferences: str) -> list[ClassicMember]:
    return [
        ClassicMember(str(number), None, "app", "/host", 1000, 1000, tuple((name, b"") for name in names.split()))
        for number, names in enumerate(preferences)
    ]


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (["range"], "range"),
        (["range sticky", "sticky range", "sticky range"], "sticky"),
        (["range sticky", "sticky range"], "range"),
        (["sticky range", "range sticky"], "sticky"),
        (["roundrobin range", "range"], "range"),
        (["a b c", "c b", "b c a"], "b"),
        (["range range sticky", "sticky"], "sticky"),
        (["range", "sticky"], None),
        ([], None),
    ],
)
def test_the_vote(preferences: list[str], chosen: str | None) -> None:
    assert select_protocol(members(*preferences)) == chosen
