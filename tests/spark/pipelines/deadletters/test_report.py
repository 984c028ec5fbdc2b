"""The rule: which error is worth a replay, why, and by which command."""

import shlex

import pytest
from typer.testing import CliRunner

from tests.spark.pipelines.deadletters.made_reports import NOW_MS, QUIET_MS, facts
from tidelog.cli import dlq
from tidelog.deadletters.dead_letters import FilterArguments, make_filter
from tidelog.spark.pipelines.deadletters.report import (
    FIX,
    FOREIGN,
    REPLAY,
    WAIT,
    ApplicationVersion,
    ErrorFacts,
    ReplayVerdict,
    age,
    is_transient,
    judge,
    replay_bounds,
    replay_command,
    show_command,
)

HOUR_MS = 3_600_000
NEWER = ApplicationVersion("2.1.0", NOW_MS - HOUR_MS, NOW_MS - 600_000)


def verdict(given: ErrorFacts, newest: ApplicationVersion | None = None) -> ReplayVerdict:
    return judge(given, newest, NOW_MS, QUIET_MS)


def test_an_error_that_always_fails_is_to_be_mended() -> None:
    kind, reason = verdict(facts())
    assert kind == FIX
    assert "the same way each time" in reason
    assert "2 h ago" in reason


def test_what_passes_by_itself_is_worth_a_replay_once_it_is_quiet() -> None:
    quiet = facts(exception_class="requests.exceptions.ReadTimeout", last_failure_ms=NOW_MS - QUIET_MS)
    assert verdict(quiet)[0] == REPLAY
    kind, reason = verdict(quiet._replace(last_failure_ms=NOW_MS - QUIET_MS + 1))
    assert kind == WAIT
    assert "wait until it is quiet" in reason


def test_an_error_that_a_newer_version_does_not_have() -> None:
    kind, reason = verdict(facts(), NEWER)
    assert kind == REPLAY
    assert "not seen since version 2.1.0 runs" in reason
    assert verdict(facts(versions=("2.0.3", "2.1.0")), NEWER)[0] == FIX, "the newer version has it too"
    assert verdict(facts(versions=()), NEWER)[0] == FIX, "nobody knows which version it was"
    assert verdict(facts(last_failure_ms=NEWER.last_ms), NEWER)[0] == FIX, "the newer one was not seen after it"


def test_letters_that_came_back_are_not_sent_again() -> None:
    back = facts(exception_class="TimeoutError", came_back=5)
    kind, reason = verdict(back)
    assert kind == FIX
    assert "5 of 10 came back after a replay" in reason
    assert verdict(back._replace(came_back=4))[0] == REPLAY


def test_letters_without_a_story_are_never_replayed() -> None:
    assert verdict(facts(exception_class=None, replayable=0), NEWER)[0] == FOREIGN
    assert verdict(facts(exception_class="TimeoutError", replayable=0))[0] == FOREIGN, "its story is of another topic"


@pytest.mark.parametrize(
    "name",
    ["TimeoutError", "ConnectionError", "ConnectionResetError", "BrokenPipeError", "asyncio.exceptions.TimeoutError",
     "psycopg.errors.DeadlockDetected", "psycopg.errors.SerializationFailure", "redis.exceptions.ConnectionError",
     "tidelog.client.errors.TimedOut", "tidelog.client.errors.BrokerUnavailable", "http.TooManyRequests", "app.RateLimited",
     "java.net.SocketTimeoutException", "grpc.ServiceUnavailable", "app.lock_timeout"],
)  # fmt: skip
def test_classes_that_pass_by_themselves(name: str) -> None:
    assert is_transient(name)


@pytest.mark.parametrize(
    "name",
    ["ValueError", "KeyError", "app.errors.OutOfStock", "json.decoder.JSONDecodeError", "timeouts.Wrong", "", "PermissionError"],
)
def test_classes_that_do_not(name: str) -> None:
    assert not is_transient(name)


def test_the_command_takes_the_error_in_its_time_and_nothing_later() -> None:
    found = replay_command(facts(first_failure_ms=1_794_700_000_123, last_failure_ms=1_794_800_000_999), None)
    assert found == (
        "tidelog dlq replay orders.email.dlq --error=app.errors.OutOfStock "
        "--since 2026-11-14T23:46:40Z --until 2026-11-16T03:33:21Z"
    )
    assert replay_bounds(1_794_700_000_123, 1_794_800_000_999) == (1_794_700_000_000, 1_794_800_001_000)
    assert replay_command(facts(), "kafka.example:9092").endswith("--bootstrap kafka.example:9092")  # type: ignore[union-attr]  # a command there is


def test_the_command_is_one_that_the_command_line_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, FilterArguments]] = []

    class Tools:
        def replay(
            self, topic: str, *, to_origin: bool, rate: object, dry_run: bool, progress: object, **filters: object
        ) -> None:
            taken.append((topic, filters))  # type: ignore[arg-type]  # as the command hands them over
            assert not to_origin
            assert not dry_run

    class Opened:
        def __enter__(self) -> Tools:
            return Tools()

        def __exit__(self, *_details: object) -> None:
            pass

    monkeypatch.setattr(dlq, "dead_letters", lambda *_arguments: Opened())
    monkeypatch.setattr(dlq, "show_result", lambda *_arguments: None)
    given = facts(exception_class="app.Odd$(reboot) 'x\"", first_failure_ms=1_794_700_000_123, last_failure_ms=1_794_800_000_999)
    command = replay_command(given, "127.0.0.1:1")
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["tidelog", "dlq"]
    outcome = CliRunner().invoke(dlq.app, words[2:])
    assert outcome.exit_code == 0, outcome.output
    assert taken[0][0] == given.topic
    wanted = make_filter(**taken[0][1])
    assert wanted.errors == (given.exception_class,)
    assert (wanted.since_ms, wanted.until_ms) == replay_bounds(given.first_failure_ms, given.last_failure_ms)


def test_a_class_that_cannot_be_typed_has_no_command() -> None:
    assert replay_command(facts(exception_class="a\nb"), None) is None
    assert replay_command(facts(exception_class="a\u202eb"), None) is None
    assert replay_command(facts(exception_class=""), None) is None


def test_the_command_that_shows_a_letter() -> None:
    assert show_command("orders.email.dlq", 1, 17, None) == "tidelog dlq show orders.email.dlq 1:17"


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_661_000, "1 h 1 min"),
        (90_000_000, "1 d 1 h"),
        (86_400_000, "1 d"),
    ],
)
def test_ages(milliseconds: int, shown: str) -> None:
    assert age(milliseconds) == shown
