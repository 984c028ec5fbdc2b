"""The settings of a session."""

from tidelog.spark.spark_session import settings_of


def test_without_a_master_spark_runs_here_and_listens_here_only() -> None:
    settings = settings_of(None, {}, None)
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert int(settings["spark.sql.shuffle.partitions"]) >= 1


def test_a_cluster_has_settings_of_its_own() -> None:
    always = {"spark.python.unix.domain.socket.enabled": "true", "spark.sql.python.filterPushdown.enabled": "true"}
    assert settings_of("spark://master:7077", {}, None) == {"spark.master": "spark://master:7077", **always}
    assert settings_of(None, {}, "yarn") == {"spark.master": "yarn", **always}


def test_what_is_given_wins() -> None:
    given = {"spark.master": "local[3]", "spark.sql.shuffle.partitions": "9"}
    settings = settings_of(None, given, "yarn")
    assert (settings["spark.master"], settings["spark.sql.shuffle.partitions"]) == ("local[3]", "9")
    assert settings_of("local[1]", given, "yarn")["spark.master"] == "local[1]"
