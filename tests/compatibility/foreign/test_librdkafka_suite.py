"""librdkafka's own suite: a part of it with the other tests, all of it under ``make compat``."""

import json
from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_classpath
from tests.compatibility.foreign.allow_list import ASIDE, read_lists
from tests.compatibility.foreign.cache import SuiteUnavailable
from tests.compatibility.foreign.librdkafka_build import Program, quick_program, whole_program
from tests.compatibility.foreign.librdkafka_suite import (
    DEFAULT,
    KAFKA_CONFIGS,
    NO_AUTO_CREATE,
    SCENARIOS,
    SUITE,
    TITLE,
    SuiteTest,
    read_report,
    read_table,
    run_suite,
    run_tests,
    runs_of,
)
from tests.compatibility.foreign.report import (
    Outcome,
    Result,
    Results,
    differences_on_kafka,
    differences_on_tidelog,
    passed,
    summary,
    write,
)
from tidelog.testing import Broker

# A second or two each, and together what a client does most: produce in all ways, consume, seek, offsets, headers.
QUICK = {
    "0001_multiobj": "0001-multiobj.c",
    "0005_order": "0005-order.c",
    "0011_produce_batch": "0011-produce_batch.c",
    "0012_produce_consume": "0012-produce_consume.c",
    "0013_null_msgs": "0013-null-msgs.c",
    "0022_consume_batch": "0022-consume_batch.c",
    "0031_get_offsets": "0031-get_offsets.c",
    "0034_offset_reset": "0034-offset_reset.c",
    "0048_partitioner": "0048-partitioner.c",
    "0073_headers": "0073-headers.c",
    "0130_store_offsets": "0130-store_offsets.c",
}
QUICK_CONFIGS = {"num.partitions": "4"}


@pytest.fixture
def built_quickly() -> Program:
    try:
        return quick_program(tuple(QUICK.values()))
    except SuiteUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def built_whole() -> Program:
    try:
        kafka_classpath()
        return whole_program()
    except (SuiteUnavailable, KafkaUnavailable) as error:
        pytest.skip(str(error))


def unexpected_events(broker: Broker) -> list[object]:
    return [event for event in broker.events if event["event"] in ("unexpected_error", "failed")]


def aside() -> set[str]:
    return {entry.test for entry in read_lists(SUITE).of_category(ASIDE)}


def test_a_part_of_the_suite_passes_on_tidelog(built_quickly: Program, tmp_path: Path) -> None:
    with Broker(configs=QUICK_CONFIGS) as broker:
        tests = [SuiteTest(name, DEFAULT) for name in QUICK]
        results = run_tests(built_quickly, tests, broker.bootstrap_servers, tmp_path, at_once=3)
        assert unexpected_events(broker) == []
    told = [f"{name}: {result.words}" for name, result in results.items() if result.outcome is not Outcome.PASSED]
    assert not told, "\n".join(told)
    assert set(results) == set(QUICK)


@pytest.mark.foreign_suite
@pytest.mark.timeout(7_200)
@pytest.mark.usefixtures("built_whole")
def test_the_suite_on_tidelog() -> None:
    results: dict[str, Result] = {}
    for scenario, configs in SCENARIOS.items():
        with Broker(configs=configs) as broker:
            results.update(run_suite(broker.bootstrap_servers, scenario, aside()))
            assert unexpected_events(broker) == []
    check(differences_on_tidelog(read_lists(SUITE), results), "tidelog", results)


@pytest.mark.foreign_suite
@pytest.mark.apache_kafka
@pytest.mark.timeout(7_200)
@pytest.mark.usefixtures("built_whole")
def test_the_suite_on_apache_kafka(tmp_path: Path) -> None:
    results: dict[str, Result] = {}
    for scenario, configs in SCENARIOS.items():
        with ApacheKafka(tmp_path / scenario, configs={**configs, **KAFKA_CONFIGS}) as kafka:
            results.update(run_suite(kafka.bootstrap_servers, scenario, aside()))
    check(differences_on_kafka(read_lists(SUITE), results), "kafka", results)


def check(differences: list[str], broker: str, results: Results) -> None:
    path = write(SUITE, broker, results)
    assert not differences, f"{summary(results)}, in full in {path}\n" + "\n".join(differences)


def test_the_lists_are_of_the_version_that_is_pinned() -> None:
    assert read_lists(SUITE).suite == TITLE


def test_the_quick_part_is_of_the_allow_list() -> None:
    assert set(QUICK) <= set(read_lists(SUITE).passes)


TABLE = """struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests,
          TEST_F_LOCAL,
          _THRES(.ucpu = 1.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0045_remove,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
    _TEST(0049_close, TEST_F_SOCKEM, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0081_admin, 0, TEST_BRKVER(0, 10, 2, 0)),
    _TEST(0139_offset_validation_mock, 0),
    _TEST(8000_idle, TEST_F_MANUAL),
    {NULL}};
"""
DIVIDED = """static void do_test_one(const char *what) {
        if (what) {
                SUB_TEST_QUICK("%s", what);
        }
}

static int helper(void) {
}

static void
do_test_two(void) {
        SUB_TEST();
}

static void do_test_no_sub_test(void) {
}
"""


def test_tests_that_want_a_broker_are_found_in_the_table() -> None:
    assert list(read_table(TABLE, DIVIDED)) == [
        SuiteTest("0001_multiobj", DEFAULT),
        SuiteTest("0045_remove", NO_AUTO_CREATE),
        SuiteTest("0049_close", DEFAULT),
        SuiteTest("0081_admin:do_test_one", DEFAULT),
        SuiteTest("0081_admin:do_test_two", DEFAULT),
    ]


def test_tests_of_one_number_are_run_together_and_sub_tests_alone() -> None:
    tests = [SuiteTest(name, DEFAULT) for name in ("0045_a", "0081_admin:one", "0081_admin:two", "0045_b")]
    assert runs_of(tests) == [[tests[0], tests[3]], [tests[1]], [tests[2]]]


def test_a_report_is_read() -> None:
    states = {"0001_a": "PASSED", "0001_b": "FAILED", "0001_c": "SKIPPED", "0001_d": "RUNNING"}
    report = json.dumps({"tests": {name: {"state": state, "duration": 1.5} for name, state in states.items()}})
    names = [*states, "0001_crashed"]
    results = read_report(report, [SuiteTest(name, DEFAULT) for name in names], "\x1b[31mwhy\x1b[0m")
    assert [result.outcome for result in results.values()] == ["passed", "failed", "skipped", "failed", "failed"]
    assert results["0001_b"] == Result(Outcome.FAILED, 1.5, "why")
    assert passed(read_report("", [SuiteTest("0001_a", DEFAULT)], "Segmentation fault")) == set()


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("[ do_test_one:12: with a queue ]\n[ do_test_one:12: with a queue: PASS (1.00s) ]", Outcome.PASSED),
        ("[ do_test_one:12 ]\nWARN: SKIPPING SUBTEST: no authorizer", Outcome.SKIPPED),
        ("no sub-test has this name", Outcome.SKIPPED),
    ],
)
def test_a_sub_test_has_passed_when_it_says_so(output: str, outcome: Outcome) -> None:
    report = json.dumps({"tests": {"0081_admin": {"state": "PASSED", "duration": 1.5}}})
    test = SuiteTest("0081_admin:do_test_one", DEFAULT)
    assert read_report(report, [test], output)[test.name].outcome is outcome
