"""``tidelog dlq``: what it says, what it does, and what it exits with."""

import re

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.command import Command
from tests.deadletters.letters import HOUR_MS, Letters, now_ms, read_all, values
from tidelog.cli.main import main


@pytest.fixture
def letters(command: Command) -> Letters:
    """Two partitions; the group is called email."""
    return Letters(command.bootstrap)


def test_list_counts_by_group_error_and_age(command: Command, letters: Letters) -> None:
    letters.write_many(3)
    letters.write(letters.letter(exception_class="TimeoutError", last_failure_ms=now_ms() - 30 * HOUR_MS))
    out = command("dlq", "list", letters.topic).out
    assert re.search(rf"{letters.topic}\s+email\s+app\.errors\.OutOfStock\s+3\s+3\s+0\s+0\s+0\s+\d", out)
    assert re.search(rf"{letters.topic}\s+email\s+TimeoutError\s+1\s+0\s+0\s+1\s+0\s+1d 6h", out)
    assert f"tidelog dlq replay {letters.topic}" in out
    stock, timeout = command("dlq", "list", letters.topic, "--json").documents
    assert (stock["error"], stock["letters"]) == ("app.errors.OutOfStock", 3)
    assert timeout["by_age"] == {"within 1 h": 0, "within 1 d": 0, "within 7 d": 1, "older": 0}
    assert letters.topic in command("dlq", "list").out


def test_list_letters_one_by_one(command: Command, letters: Letters) -> None:
    letters.write_many(30)
    out = command("dlq", "list", letters.topic, "--letters").out
    assert out.count("OutOfStock") == 20
    assert "These are the first 20; for more, add --limit." in out
    assert f"tidelog dlq show {letters.topic} " in out
    assert command("dlq", "list", letters.topic, "-l", "-n", "30").out.count("OutOfStock") == 30
    documents = command("dlq", "list", letters.topic, "--letters", "--offsets", "3-4", "--json").documents
    assert sorted(int(document["value"]) for document in documents) == [6, 7, 8, 9]
    assert documents[0]["story"]["exception_class"] == "app.errors.OutOfStock"
    assert "needs exactly one dead-letter topic" in command.fails("dlq", "list", "--letters")


def test_empty_states_say_what_to_do(command: Command, letters: Letters) -> None:
    assert command("dlq", "list", letters.topic).out == "No dead letters are waiting in 1 topic.\n"
    assert command("dlq", "list", letters.topic, "--letters").out == "No dead letters are waiting in 1 topic.\n"
    fitting = command("dlq", "list", letters.topic, "--error", "KeyError").out
    assert fitting == "No waiting letter matches. To see all waiting letters: tidelog dlq list\n"
    replayed = command("dlq", "replay", letters.topic).out
    assert replayed.startswith("Nothing was replayed: no letter is waiting.")
    assert f"tidelog dlq list {letters.topic}" in replayed
    assert "give its place, such as 0:17" in command.fails("dlq", "show", letters.topic)


def test_show_has_the_whole_story(command: Command, letters: Letters) -> None:
    story = letters.letter(partition=1, application_version="1.4.0", replays=2)
    letters.write(story, key=b"customer-42", value=b'{"total": 7}')
    out = command("dlq", "show", letters.topic, "1:0").out
    for text in (
        f"{letters.topic} 1:0",
        f"{letters.source} 1:{story.offset}, sent 20",
        "email",
        "6, replayed 2 times before",
        "1.4.0",
        "app.errors.OutOfStock: no more of it",
        "Traceback (most recent call last)",
        "customer-42",
        "content-type: text/plain",
        '{"total": 7}',
        f"tidelog dlq replay {letters.topic} --partition 1 --offsets 0",
    ):
        assert text in out
    # Without a place it is the first that waits.
    assert command("dlq", "show", letters.topic).lines[0] == out.splitlines()[0]
    (document,) = command("dlq", "show", letters.topic, "1:0", "--json").documents
    assert document["story"]["attempts"] == 6
    assert document["mark"] is None
    command("dlq", "discard", letters.topic, "--all", "--reason", "no longer sold", "--yes")
    assert re.search(r"state +discarded 20.* ago\): no longer sold", command("dlq", "show", letters.topic, "1:0").out)


def test_what_is_not_text_is_shown_and_told_in_base64(command: Command, letters: Letters) -> None:
    letters.write(letters.letter(), key=b"\xff\x00", value=b"\x80")
    assert r"\xff" in command("dlq", "show", letters.topic, "0:0").out
    (document,) = command("dlq", "show", letters.topic, "0:0", "--json").documents
    assert (document["key_base64"], document["value_base64"]) == ("/wA=", "gA==")


def test_replay_says_where_to_and_does_it_once(command: Command, letters: Letters) -> None:
    letters.write_many(5)
    dry = command("dlq", "replay", letters.topic, "--dry-run").out
    assert dry == f"Would have replayed 5 letters (5 to {letters.retry}).\n"
    assert read_all(letters.bootstrap, letters.retry) == []
    out = command("dlq", "replay", letters.topic, "--partition", "0", "--offsets", "0-1").out
    assert out == f"Replayed 2 letters (2 to {letters.retry}).\n"
    (document,) = command("dlq", "replay", letters.topic, "--json").documents
    assert (document["letters"], document["done_before"], document["dry_run"]) == (3, 2, False)
    assert "5 letters of the topic had been replayed or discarded before" in command("dlq", "replay", letters.topic).out
    assert sorted(values(read_all(letters.bootstrap, letters.retry))) == [0, 1, 2, 3, 4]


def test_replay_to_the_origin_names_the_other_groups(command: Command, letters: Letters) -> None:
    letters.write_many(1)
    alone = command("dlq", "replay", letters.topic, "--to-origin", "--dry-run")
    assert (
        alone.err == f"warning: no group besides email has read {letters.source} yet; a later one will see the messages twice\n"
    )
    group = f"billing-{letters.source}"
    consumer = Consumer({"bootstrap.servers": letters.bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(letters.source, 0, 0)], asynchronous=False)
    consumer.close()
    refused = command("dlq", "replay", letters.topic, "--to-origin")
    assert (refused.code, "to go ahead, add --yes" in refused.err) == (1, True)
    result = command("dlq", "replay", letters.topic, "--to-origin", "--yes")
    assert result.err == f"warning: besides email, these groups will see the messages in {letters.source} again: {group}\n"
    assert result.out == f"Replayed 1 letter (1 to {letters.source}).\n"


def test_filters_by_age_and_time(command: Command, letters: Letters) -> None:
    letters.write(letters.letter(last_failure_ms=now_ms() - 3 * HOUR_MS), letters.letter(last_failure_ms=now_ms() - HOUR_MS))
    for since, expected in (("2h", 1), ("PT4H", 2), ("2020-01-01T00:00:00Z", 2), (str(now_ms()), 0)):
        (document,) = command("dlq", "replay", letters.topic, "--since", since, "--dry-run", "--json").documents
        assert document["letters"] == expected
    (document,) = command("dlq", "replay", letters.topic, "--until", "2h", "--dry-run", "--json").documents
    assert document["letters"] == 1


def test_discard_wants_to_know_which(command: Command, letters: Letters) -> None:
    letters.write_many(4)
    assert "--all" in command.fails("dlq", "discard", letters.topic)
    assert "--all" in command.fails("dlq", "discard", letters.topic, "--all", "--partition", "0")
    assert command("dlq", "discard", letters.topic, "--all", "--dry-run").out == "Would have discarded 4 letters.\n"
    assert "to go ahead, add --yes" in command.fails("dlq", "discard", letters.topic, "--partition", "0")
    assert command("dlq", "discard", letters.topic, "--partition", "0", "--yes").out == "Discarded 2 letters.\n"
    assert command("dlq", "depth", letters.topic, "--json").documents[0]["letters"] == 2


def test_depth_fails_above_a_number(command: Command, letters: Letters) -> None:
    letters.write_many(3)
    fine = command("dlq", "depth", letters.topic, "--fail-above", "3")
    assert (fine.code, fine.err) == (0, "")
    assert re.search(rf"{letters.topic}\s+3\s", fine.out)
    deep = command("dlq", "depth", letters.topic, "--fail-above", "2")
    assert (deep.code, deep.err) == (3, "warning: 3 dead letters, which is more than 2; to see them: tidelog dlq list\n")
    assert "at most 3" in command("dlq", "depth", letters.topic, "--estimate").out


def test_depth_for_prometheus(command: Command, letters: Letters) -> None:
    letters.write_many(2)
    families = {family.name: family for family in text_string_to_metric_families(command("dlq", "depth", "--prometheus").out)}
    samples = {sample.labels["topic"]: sample.value for sample in families["tidelog_dead_letters"].samples}
    assert samples[letters.topic] == 2
    ages = {sample.labels["topic"]: sample.value for sample in families["tidelog_dead_letters_oldest_seconds"].samples}
    assert 0 <= ages[letters.topic] < 600
    assert families["tidelog_dead_letters"].type == "gauge"
    assert "only one" in command.fails("dlq", "depth", "--prometheus", "--json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replay", "nowhere.email.dlq"], "there is no topic nowhere.email.dlq"),
        (["replay", "orders"], "orders is not a dead-letter topic: they are called TOPIC.GROUP.dlq"),
        (["replay", "a.b.dlq", "--offsets", "9-5"], "the first offset, 9, is above the last one, 5"),
        (["replay", "a.b.dlq", "--offsets", "x"], "expected FIRST-LAST such as 5-9"),
        (["replay", "a.b.dlq", "--offsets", "-"], "expected FIRST-LAST such as 5-9"),
        (["replay", "a.b.dlq", "--since", "1h", "--until", "2h"], "the first time is not before the last one"),
        (["replay", "a.b.dlq", "--since", "yesterday"], "--since yesterday: expected milliseconds or a time"),
        (["replay", "a.b.dlq", "--since", "3x"], "--since 3x: expected a duration"),
        (["replay", "a.b.dlq", "--rate", "0"], "a rate is a number of letters per second above 0"),
        (["show", "a.b.dlq", "17"], "expected PARTITION:OFFSET such as 0:17"),
    ],
)
def test_what_makes_no_sense_is_one_line(command: Command, words: list[str], message: str) -> None:
    assert message in command.fails("dlq", *words)


UNREACHABLE = (
    "tidelog: no broker answers at 127.0.0.1:1: connection refused; check the address, or start a broker: tidelog start\n"
)


def test_no_broker_is_named_by_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dlq", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == UNREACHABLE


@pytest.mark.parametrize("name", ["list", "show", "replay", "discard", "depth"])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dlq", name, "--help"]) == 0
    assert f"Example: tidelog dlq {name}" in " ".join(capsys.readouterr().out.split())
