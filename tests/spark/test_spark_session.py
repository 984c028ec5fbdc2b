"""The settings of a session."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from tidelog.client.errors import InvalidArgument
from tidelog.spark.spark_session import parallelism, settings_of


def test_without_a_master_spark_runs_here_and_listens_here_only() -> None:
    settings = settings_of(None, {}, None)
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert int(settings["spark.sql.shuffle.partitions"]) >= 1


def test_a_cluster_has_settings_of_its_own() -> None:
    always = {
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    assert settings_of("spark://master:7077", {}, None) == {"spark.master": "spark://master:7077", **always}
    assert settings_of(None, {}, "yarn") == {"spark.master": "yarn", **always}


def test_what_is_given_wins() -> None:
    given = {"spark.master": "local[3]", "spark.sql.shuffle.partitions": "9"}
    settings = settings_of(None, given, "yarn")
    assert (settings["spark.master"], settings["spark.sql.shuffle.partitions"]) == ("local[3]", "9")
    assert settings_of("local[1]", given, "yarn")["spark.master"] == "local[1]"


class ConnectSession:
    """A session of Spark Connect, as far as this goes: it refuses to show its context."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.conf = SimpleNamespace(get=settings.get)

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "sparkContext"})


@pytest.mark.parametrize(("settings", "expected"), [({"spark.default.parallelism": "12"}, 12), ({}, os.cpu_count())])
def test_a_session_without_a_context_tells_its_parallelism(settings: dict[str, str], expected: int) -> None:
    session: Any = ConnectSession(settings)
    assert parallelism(session) == expected


@pytest.mark.parametrize(
    ("master", "given", "variable"),
    [
        ("sc://spark:15002", {}, None),
        (None, {"spark.master": "sc://spark:15002"}, None),
        (None, {"spark.remote": "sc://spark:15002"}, None),
        ("local[2]", {}, "sc://spark:15002"),
    ],
)
def test_spark_connect_is_refused_with_what_to_do(
    master: str | None, given: dict[str, str], variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    if variable is not None:
        monkeypatch.setenv("SPARK_REMOTE", variable)
    with pytest.raises(InvalidArgument, match=r"^sc://spark:15002 is a server of Spark Connect.*give a master"):
        settings_of(master, given, None)
