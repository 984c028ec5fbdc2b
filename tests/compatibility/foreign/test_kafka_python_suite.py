"""kafka-python's own integration suite: a part of it with the other tests, all of it under ``make compat``."""

from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_classpath
from tests.compatibility.foreign.allow_list import read_lists
from tests.compatibility.foreign.cache import SuiteUnavailable
from tests.compatibility.foreign.kafka_python_suite import (
    KAFKA_CONFIGS,
    PACKAGE,
    SUITE,
    TIDELOG_CONFIGS,
    read_results,
    run_suite,
    suite_folder,
    suite_version,
)
from tests.compatibility.foreign.report import (
    Outcome,
    Result,
    differences_on_kafka,
    differences_on_tidelog,
    passed,
    summary,
    write,
)
from tidelog.testing import Broker

# Half a minute at most, of each kind something: groups, transactions, compression, offsets, administration. Not those that give a
# consumer a second to join and read, whatever else the machine does.
QUICK = (
    "test_admin_integration.py::test_alter_partition_reassignments",
    "test_admin_integration.py::test_create_delete_topics",
    "test_admin_integration.py::test_create_partitions",
    "test_admin_integration.py::test_delete_groups_with_errors",
    "test_admin_integration.py::test_describe_configs_broker_resource_returns_configs",
    "test_admin_integration.py::test_describe_configs_topic_resource_returns_configs",
    "test_admin_integration.py::test_describe_metadata_quorum",
    "test_admin_integration.py::test_describe_topic_partitions_pagination",
    "test_admin_integration.py::test_elect_leaders",
    "test_consumer_integration.py::test_group",
    "test_consumer_integration.py::test_kafka_consumer",
    "test_consumer_integration.py::test_kafka_consumer__offset_commit_resume",
    "test_consumer_integration.py::test_kafka_consumer_offsets_for_time",
    "test_consumer_integration.py::test_kafka_version_infer",
    "test_producer_integration.py::test_end_to_end[None]",
    "test_producer_integration.py::test_end_to_end[zstd]",
    "test_producer_integration.py::test_idempotent_producer_high_throughput",
    "test_producer_integration.py::test_transactional_producer_messages",
    "test_producer_integration.py::test_transactional_producer_offsets",
)
QUICK_SECONDS_MAX = 120.0

# These expect the broker itself to be old, and fail on Apache Kafka 4.3 too when told that it is.
ABOUT_THE_BROKERS_AGE = {
    "test_admin_integration.py::test_describe_configs_broker_resource_returns_configs",
    "test_consumer_integration.py::test_kafka_version_infer",
}
OLDER_PASSES_MIN = 43


@pytest.fixture
def fetched_suite() -> Path:
    try:
        return suite_folder()
    except SuiteUnavailable as error:
        pytest.skip(str(error))


def unexpected_events(broker: Broker) -> list[object]:
    return [event for event in broker.events if event["event"] in ("unexpected_error", "failed")]


@pytest.mark.usefixtures("fetched_suite")
def test_a_part_of_the_suite_passes_on_tidelog() -> None:
    with Broker(configs=TIDELOG_CONFIGS) as broker:
        results = run_suite(broker.bootstrap_servers, QUICK, seconds_max=QUICK_SECONDS_MAX)
        assert unexpected_events(broker) == []
    told = [f"{name}: {result.words}" for name, result in results.items() if result.outcome is not Outcome.PASSED]
    assert not told, "\n".join(told)
    assert set(results) == set(QUICK)


@pytest.mark.foreign_suite
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("fetched_suite")
def test_the_suite_on_tidelog() -> None:
    with Broker(configs=TIDELOG_CONFIGS) as broker:
        results = run_suite(broker.bootstrap_servers)
        assert unexpected_events(broker) == []
    path = write(SUITE, "tidelog", results)
    differences = differences_on_tidelog(read_lists(SUITE), results)
    assert not differences, f"{summary(results)}, in full in {path}\n" + "\n".join(differences)


@pytest.mark.foreign_suite
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("fetched_suite")
@pytest.mark.parametrize("kafka_version", ["2.1", "2.8", "3.6"])
def test_the_suite_with_clients_that_speak_older_versions(kafka_version: str) -> None:
    """What such a client cannot ask for is skipped by the suite."""
    with Broker(configs=TIDELOG_CONFIGS) as broker:
        results = run_suite(broker.bootstrap_servers, kafka_version=kafka_version)
        assert unexpected_events(broker) == []
    may_pass = set(read_lists(SUITE).passes) - ABOUT_THE_BROKERS_AGE
    failed = [f"{name}: {results[name].words}" for name in sorted(may_pass) if results[name].outcome is Outcome.FAILED]
    assert not failed, "\n".join(failed)
    assert len(passed(results) & may_pass) >= OLDER_PASSES_MIN


@pytest.mark.foreign_suite
@pytest.mark.apache_kafka
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("fetched_suite")
def test_the_suite_on_apache_kafka(tmp_path: Path) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    lists = read_lists(SUITE)
    with ApacheKafka(tmp_path, configs=KAFKA_CONFIGS, node_id=0) as kafka:
        results = run_suite(kafka.bootstrap_servers)
        # Kafka has a second chance: the question is what can pass there. Tidelog has none.
        if failed := sorted(set(lists.passes) - passed(results)):
            results = {**results, **run_suite(kafka.bootstrap_servers, failed)}
    path = write(SUITE, "kafka", results)
    differences = differences_on_kafka(lists, results)
    assert not differences, f"{summary(results)}, in full in {path}\n" + "\n".join(differences)


def test_the_lists_are_of_the_version_that_is_pinned() -> None:
    assert read_lists(SUITE).suite == f"{PACKAGE} {suite_version()}"


def test_the_quick_part_is_of_the_allow_list() -> None:
    assert set(QUICK) <= set(read_lists(SUITE).passes)


def test_a_run_that_was_cut_short_is_read_as_far_as_it_came() -> None:
    told = '{"test": "test/integration/test_a.py::test_b", "outcome": "failed", "seconds": 1.5, "words": "why"}\n'
    results = read_results(told + told.replace("test_b", "test_c").replace("failed", "passed") + '{"test": "test/integ')
    assert results["test_a.py::test_b"] == Result(Outcome.FAILED, 1.5, "why")
    assert passed(results) == {"test_a.py::test_c"}
