"""The lists of every foreign suite: their format, the share that they claim, and that the allow-lists only grow."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compatibility.foreign.allow_list import (
    ASIDE,
    CATEGORIES,
    FOLDER,
    MISSING,
    InvalidList,
    LeftOut,
    Lists,
    parse_lists,
    passes_path,
    passes_text,
    read_lists,
)

SHARE_MIN = 0.95
PAGE = FOLDER.parents[2] / "docs" / "reference" / "compatibility.md"
SUITES = sorted(path.name.removesuffix(".passes.txt") for path in FOLDER.glob("*.passes.txt"))
GIT_SECONDS_MAX = 60.0


def test_there_are_suites() -> None:
    assert "kafka_python" in SUITES


@pytest.mark.parametrize("suite", SUITES)
def test_of_what_passes_on_apache_kafka_nearly_all_passes(suite: str) -> None:
    assert read_lists(suite).share >= SHARE_MIN


@pytest.mark.parametrize("suite", SUITES)
def test_the_page_has_the_counts(suite: str) -> None:
    assert page_row(read_lists(suite)) in PAGE.read_text().splitlines()


def page_row(lists: Lists) -> str:
    """Tests, of these on Kafka, of these on Tidelog, their share; aside, and not on Kafka either."""
    missing, aside, not_on_kafka = (len(lists.of_category(category)) for category in CATEGORIES)
    passes = len(lists.passes)
    counts = (len(lists.names), passes + missing, passes, f"{lists.share:.1%}", aside, not_on_kafka)
    return f"| {lists.suite} | {' | '.join(str(count) for count in counts)} |"


@pytest.mark.parametrize("suite", SUITES)
def test_an_allow_list_only_grows(suite: str) -> None:
    lists = read_lists(suite)
    for text in earlier_versions(passes_path(suite)):
        assert lost(lists, text) == []


def lost(lists: Lists, earlier_passes: str) -> list[str]:
    """What an earlier allow-list has and this one has not; another version of the suite is another list."""
    earlier = parse_lists(earlier_passes, "", "earlier")
    return sorted(set(earlier.passes) - set(lists.passes)) if earlier.suite == lists.suite else []


def earlier_versions(path: Path) -> list[str]:
    """All that was ever committed; skips where there is no history, as in a source archive."""
    if shutil.which("git") is None or git(path, "rev-parse", "--is-inside-work-tree").strip() != "true":
        pytest.skip("no history of the lists here: not a git work tree")
    commits = git(path, "log", "--format=%H", "--diff-filter=AM", "--", path.name).split()
    return [git(path, "show", f"{commit}:./{path.name}") for commit in commits]


def git(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=path.parent, capture_output=True, text=True, timeout=GIT_SECONDS_MAX, check=False
    )
    return done.stdout


def test_what_is_taken_out_of_an_allow_list_is_found() -> None:
    lists = parse_lists("# suite 1\na\n", "missing | b | not built so far, sadly\n", "suite")
    assert lost(lists, "# suite 1\na\nb\n") == ["b"]
    assert lost(lists, "# suite 0\na\nb\n") == []
    assert lost(lists, "# suite 1\na\n") == []


def test_lists_are_read() -> None:
    left_out = "# a comment\naside | c | SASL is not served yet\nmissing | b | not built so far, sadly\n"
    lists = parse_lists("# suite 1\n\na\nd::e[1]\n", left_out, "suite")
    assert lists.suite == "suite 1"
    assert lists.passes == ("a", "d::e[1]")
    assert lists.left_out == (
        LeftOut(ASIDE, "c", "SASL is not served yet"),
        LeftOut(MISSING, "b", "not built so far, sadly"),
    )
    assert lists.names == {"a", "b", "c", "d::e[1]"}
    assert lists.share == pytest.approx(2 / 3)
    assert page_row(lists) == "| suite 1 | 4 | 3 | 2 | 66.7% | 1 | 0 |"
    assert parse_lists(passes_text("suite 1", {"d::e[1]", "a"}), "", "suite").passes == lists.passes


@pytest.mark.parametrize(
    ("passes", "left_out"),
    [
        ("a\n", ""),
        ("", ""),
        ("# s 1\nb\na\n", ""),
        ("# s 1\na\na\n", ""),
        ("# s 1\na\n", "missing | a | not built so far, sadly\n"),
        ("# s 1\n", "missing | a\n"),
        ("# s 1\n", "sometimes | a | not built so far, sadly\n"),
        ("# s 1\n", "missing | a | \n"),
        ("# s 1\n", "missing | a | because\n"),
        ("# s 1\n", "missing | a | this one is flaky on our machine\n"),
        ("# s 1\n", "missing | b | not built so far, sadly\nmissing | a | not built so far, sadly\n"),
    ],
)
def test_what_breaks_the_format_is_refused(passes: str, left_out: str) -> None:
    with pytest.raises(InvalidList):
        parse_lists(passes, left_out, "s")
