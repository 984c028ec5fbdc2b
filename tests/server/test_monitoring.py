"""/metrics and /health of a real broker under real clients, and everything that names its series: rules, dashboard, docs."""

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests.client.queue.working import receive
from tidelog import __version__
from tidelog.broker.metric_sources import SLOW_FOLLOWER
from tidelog.client.queue import Queue
from tidelog.config.broker import METRICS_LISTENER, METRICS_PARTITIONS
from tidelog.deadletters.dead_letter import Depth, prometheus_text
from tidelog.metrics.exposition import CONTENT_TYPE
from tidelog.metrics.registry import SLICE_SAMPLES, Description, Kind, Registry, Sample
from tidelog.ports.executor import ChildTask, Completion, OnDone
from tidelog.server.http import HttpResponse
from tidelog.server.monitoring import FRESH_SECONDS, MetricsPage, make_registries
from tidelog.testing import Broker

ROOT = Path(__file__).resolve().parent.parent.parent
ALERTS = ROOT / "ops" / "tidelog-alerts.yml"
DASHBOARD = ROOT / "ops" / "tidelog-dashboard.json"
MANIFESTS = ROOT / "ops" / "kubernetes.yml"
DOCUMENT = ROOT / "docs" / "reference" / "metrics.md"
WAIT_SECONDS = 60.0

# Prometheus has it of every target.
OF_PROMETHEUS = {"up"}
# Labels that Prometheus adds.
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}


def metrics_address(broker: Broker) -> tuple[str, int]:
    started = next(event for event in reversed(broker.events) if event["event"] == "started")
    host, _, port = str(started["metrics"]).rpartition(":")
    return host, int(port)


def get(broker: Broker, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*metrics_address(broker), timeout=WAIT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Page:
    """What was scraped: samples by their name, families by theirs."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples: dict[str, list[Any]] = {}
        for family in self.families.values():
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append(sample)

    def value(self, name: str, **labels: str) -> float:
        (found,) = [sample for sample in self.samples[name] if labels.items() <= sample.labels.items()]
        return float(found.value)

    def has(self, name: str, **labels: str) -> bool:
        return any(labels.items() <= sample.labels.items() for sample in self.samples.get(name, ()))


def with_the_toolkit(page: Page) -> Page:
    """And what ``tidelog dlq depth --prometheus`` writes for the node exporter."""
    toolkit = Page(prometheus_text([Depth("orders.email.dlq", 1, 0)], 0))
    toolkit.samples |= page.samples
    return toolkit


def with_a_follower(page: Page) -> Page:
    """And the series that only a broker with followers has, as its registry would write it."""
    follower = Page(f'# TYPE {SLOW_FOLLOWER.name} gauge\n{SLOW_FOLLOWER.name}{{{SLOW_FOLLOWER.labels[0]}="2"}} 0\n# EOF\n')
    follower.samples |= page.samples
    return follower


def scrape(broker: Broker) -> Page:
    status, text = get(broker, "/metrics")
    assert status == 200
    return Page(text)


def use(broker: Broker) -> None:
    """A bit of everything: produce, a transaction, a group that is behind, an error. A queue comes beside it."""
    address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    admin = AdminClient(address)
    for created in admin.create_topics([NewTopic("orders", 2), NewTopic("resize-jobs", 1)]).values():
        created.result(WAIT_SECONDS)
    producer = Producer({**address, "transactional.id": "tx", "transaction.timeout.ms": 600_000})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    for partition in (0, 1):
        for number in range(10):
            producer.produce("orders", f"value {number}".encode(), partition=partition)
    producer.commit_transaction(WAIT_SECONDS)
    consumer = Consumer({**address, "group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    assert consumer.consume(1, WAIT_SECONDS)
    consumer.commit(offsets=[TopicPartition("orders", partition, 4) for partition in (0, 1)], asynchronous=False)
    consumer.close()
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce("orders", b"open", partition=0)
    producer.flush(WAIT_SECONDS)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(configs={METRICS_LISTENER: "127.0.0.1:0", METRICS_PARTITIONS: "all"}) as broker:
        use(broker)
        # The lock outlasts the tests of this module.
        with Queue(broker.bootstrap_servers, "resize-jobs", visibility_timeout=600) as queue:
            for name in ("cat.png", "dog.png"):
                queue.send(name).result()
            receive(queue, 1)
            yield broker


@pytest.fixture(scope="module")
def page(broker: Broker) -> Page:
    """When the lag monitor has been round."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        page = scrape(broker)
        is_round = page.has("tidelog_group_lag_seconds", group="billing") and page.has("tidelog_share_oldest_seconds")
        if is_round and page.has("tidelog_group_deletion_seconds"):
            return page
        assert time.monotonic() < deadline, "the lag of a group never came"
        time.sleep(0.2)


# -- the page ----------------------------------------------------------------------------------------------------------------


def test_what_clients_did_is_shown(page: Page) -> None:
    assert page.value("tidelog_requests_total", api="Produce") >= 2
    assert page.value("tidelog_request_seconds_count", api="Produce") >= 2
    assert page.value("tidelog_request_wait_seconds_count", api="Produce") >= 2
    assert page.value("tidelog_request_errors_total", api="CreateTopics", code="TOPIC_ALREADY_EXISTS") == 1
    assert page.value("tidelog_topic_produce_to_ack_seconds_count", topic="orders") >= 2
    assert page.value("tidelog_topic_produced_bytes_total", topic="orders") > 0
    assert page.value("tidelog_topic_fetched_bytes_total", topic="orders") > 0
    # Ten records and a marker; the open transaction's is above the end that the group may read.
    assert page.value("tidelog_log_end_offset", topic="orders", partition="1") == 11
    assert page.value("tidelog_group_lag_messages", group="billing", topic="orders", partition="1") == 7
    assert page.value("tidelog_share_backlog", group="resize-jobs", topic="resize-jobs") == 2
    assert page.value("tidelog_share_acquired", group="resize-jobs") == 1
    assert page.value("tidelog_transactions_open") == 1
    assert page.value("tidelog_transaction_oldest_seconds") > 0
    assert page.value("tidelog_log_open_transactions") == 1
    assert page.value("tidelog_connections_accepted_total") >= 1
    assert page.value("tidelog_ready") == 1
    assert page.value("tidelog_build_info", version=__version__) == 1
    assert page.value("tidelog_send_seconds_count") > 0
    assert page.value("tidelog_group_commit_sync_seconds_count") > 0


def test_the_process_is_shown(broker: Broker, page: Page) -> None:
    assert 10e6 < page.value("process_resident_memory_bytes") < 1e9
    assert 0 < page.value("process_cpu_seconds_total") < 600
    assert 0 < page.value("process_open_fds") < page.value("process_max_fds")
    assert abs(page.value("process_start_time_seconds") - time.time()) < 600
    assert 0 < page.value("tidelog_disk_free_bytes") < page.value("tidelog_disk_size_bytes")


def test_histograms_add_up(page: Page) -> None:
    for family in page.families.values():
        if family.type != "histogram":
            continue
        by_series: dict[tuple[tuple[str, str], ...], list[Any]] = {}
        for sample in family.samples:
            labels = tuple(sorted((name, text) for name, text in sample.labels.items() if name != "le"))
            by_series.setdefault(labels, []).append(sample)
        for samples in by_series.values():
            buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
            assert buckets == sorted(buckets)
            (count,) = [sample.value for sample in samples if sample.name.endswith("_count")]
            assert buckets[-1] == count


def test_names_follow_the_conventions(page: Page) -> None:
    for family in page.families.values():
        assert re.fullmatch(r"(tidelog|process)_[a-z][a-z_]*[a-z]", family.name)
        assert family.documentation.endswith(".")
        # The parser takes the suffix away from the name of a counter.
        assert not family.name.endswith("_total")
        assert not re.search(r"_(ms|us|ns|kb|mb|percent)(_|$)", family.name)


def test_health(broker: Broker) -> None:
    assert get(broker, "/health/live") == (200, "live\n")
    assert get(broker, "/health/ready") == (200, "ready\n")
    assert get(broker, "/health")[0] == 404


# -- queues ------------------------------------------------------------------------------------------------------------------


def test_keda_reads_the_backlog_of_a_queue_as_it_is(broker: Broker) -> None:
    """What KEDA's metrics-api scaler does with the object in ops/: one GET, and the number at ``valueLocation``."""
    scaled = [each for each in yaml.safe_load_all(MANIFESTS.read_text()) if each["kind"] == "ScaledObject"]
    (trigger,) = [each for one in scaled for each in one["spec"]["triggers"] if each["type"] == "metrics-api"]
    url = urlsplit(trigger["metadata"]["url"])
    status, text = get(broker, f"{url.path}?{url.query}")
    document = json.loads(text)
    assert (status, document[trigger["metadata"]["valueLocation"]]) == (200, 2)
    assert (document["queue"], document["group"], document["partitions"]) == ("resize-jobs", "resize-jobs", 1)
    assert (document["acquired"], document["delayed"], document["redelivered"]) == (1, 0, 0)
    assert 0 <= document["oldest_seconds"] < 600


def test_a_group_that_has_not_begun_has_everything_to_do(broker: Broker) -> None:
    document = json.loads(get(broker, "/queues/resize-jobs?group=archive")[1])
    assert (document["backlog"], document["acquired"], document["delayed"]) == (2, 0, None)


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/queues/nothing?group=resize-jobs", 404, "there is no queue nothing: no topic has this name"),
        ("/queues/resize%2Djobs?name=a", 400, "expected /queues/QUEUE or /queues/QUEUE?group=GROUP"),
        ("/queues/resize-jobs?group=", 400, "expected /queues/QUEUE or /queues/QUEUE?group=GROUP"),
    ],
)
def test_mistakes_about_queues_are_told_as_json(broker: Broker, path: str, status: int, error: str) -> None:
    found, text = get(broker, path)
    assert (found, json.loads(text)) == (status, {"error": error})


def test_a_broker_shows_nothing_unless_it_is_told_to() -> None:
    with Broker() as broker:
        started = next(event for event in broker.events if event["event"] == "started")
        assert started["metrics"] is None


def test_it_stops_cleanly_while_a_scraper_is_connected() -> None:
    with Broker(configs={METRICS_LISTENER: "127.0.0.1:0"}) as broker:
        connection = http.client.HTTPConnection(*metrics_address(broker), timeout=WAIT_SECONDS)
        connection.request("GET", "/health/live")
        assert connection.getresponse().read() == b"live\n"
        broker.stop()
        assert broker.events[-1]["is_clean"] is True
        connection.close()


# -- what names its series ---------------------------------------------------------------------------------------------------

METRIC = re.compile(r"(?<![\w:])([a-z][a-z0-9_]*)\s*(\{[^}]*\})?(?=\s*(?:\[|$|[-+*/^)<>=!,]|\bor\b|\band\b|\bunless\b))")
WORDS = {"or", "and", "unless", "by", "le", "bool"}


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Every series that a PromQL expression names, with the labels that it is picked by."""
    without_grouping = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", " ", expression)
    found = [
        (name, set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", labels or "")))
        for name, labels in METRIC.findall(without_grouping)
        if name not in WORDS
    ]
    assert found, f"no series in {expression}"
    return found


def grouping(expression: str) -> set[str]:
    return {label.strip() for found in re.findall(r"\bby\s*\(([^)]*)\)", expression) for label in found.split(",")}


def check_expression(page: Page, expression: str, shown_labels: set[str]) -> None:
    known_labels: set[str] = set()
    for name, labels in selectors(expression):
        if name in OF_PROMETHEUS:
            continue
        assert name in page.samples, f"{name} of {expression} does not exist"
        own = {label for sample in page.samples[name] for label in sample.labels} | LABELS_OF_PROMETHEUS
        assert labels <= own, f"{name} has no labels {labels - own}, in {expression}"
        known_labels |= own
    asked = grouping(expression) | shown_labels
    assert asked <= known_labels | LABELS_OF_PROMETHEUS, f"{asked} of {expression}"


def test_series_are_found_in_expressions() -> None:
    expression = (
        'histogram_quantile(0.9, sum by (a, le) (rate(x_bucket{b="c"}[5m]))) > 1 and delta(y[1h]) / z_total < 2 or w == 0'
    )
    assert selectors(expression) == [("x_bucket", {"b"}), ("y", set()), ("z_total", set()), ("w", set())]
    assert grouping(expression) == {"a", "le"}


def test_alert_rules_name_series_that_exist(page: Page) -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        labels = set(re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]))
        check_expression(with_a_follower(with_the_toolkit(page)), rule["expr"], labels)


def test_the_dashboard_names_series_that_exist(page: Page) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len(panels) > 20
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
            check_expression(with_a_follower(page), expression, set(re.findall(r"\{\{([a-z_]+)\}\}", target["legendFormat"])))


def test_the_scrape_configuration_names_the_rules() -> None:
    configuration = yaml.safe_load((ROOT / "ops" / "prometheus.yml").read_text())
    assert configuration["rule_files"] == [ALERTS.name]


# -- docs/reference/metrics.md ------------------------------------------------------------------------------------------------


def document_row(description: Description) -> str:
    labels = f"{', '.join(description.labels)} ({description.series_max})" if description.labels else ""
    return f"| `{description.name}` | {description.kind.value} | {labels} | {description.help} |"


def test_the_document_has_every_metric_in_one_line(page: Page) -> None:
    rows = [
        line
        for line in DOCUMENT.read_text().splitlines()
        # A worker's own page is described there too.
        if line.startswith(("| `tidelog_", "| `process_")) and not line.startswith("| `tidelog_worker_")
    ]
    assert sorted(rows) == sorted(document_row(description) for description in all_descriptions())
    # And what is described is what is shown: the parser takes the suffix away from the name of a counter.
    assert {description.name.removesuffix("_total") for description in all_descriptions()} == set(page.families)


def all_descriptions() -> list[Description]:
    """Nothing is asked of either: a description does not depend on what it describes."""
    on_loop, off_loop = make_registries(Anything(), Anything())  # type: ignore[arg-type]  # stands for both
    return [*on_loop.descriptions, *off_loop.descriptions]


class Anything:
    def __getattr__(self, name: str) -> "Anything":
        return self


class HandLoop:
    """What a page asks of a loop; time moves when told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.later.append(callback)


class HandExecutor:
    """Work is done when told."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], OnDone]] = []

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        self.work.append((work, on_done))

    def submit_child(self, task: ChildTask, on_done: OnDone) -> None:
        raise AssertionError("no page needs a process")

    def run(self) -> None:
        work, on_done = self.work.pop(0)
        on_done(Completion(work(), None))


class World:
    def __init__(self, samples: int = 1) -> None:
        self.loop, self.executor = HandLoop(), HandExecutor()
        self.value = 1
        description = Description("size", Kind.GAUGE, "Size.", ("topic",), samples)
        registry, off_loop = Registry(), Registry()

        def collect() -> list[Sample]:
            if self.value < 0:
                raise RuntimeError("broken")
            return [(description, (str(number),), self.value) for number in range(samples)]

        registry.add([description], collect)
        off_loop.add_value(Kind.GAUGE, "memory", "Memory.", lambda: 7)
        self.page = MetricsPage(self.loop, registry, off_loop, self.executor)  # type: ignore[arg-type]  # of a loop only this is asked
        self.answers: list[HttpResponse] = []

    def ask(self) -> None:
        self.page.serve(self.answers.append)


def test_a_page_has_what_is_counted_on_the_loop_and_beside_it() -> None:
    world = World()
    world.ask()
    assert world.answers == []
    world.executor.run()
    (answer,) = world.answers
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, CONTENT_TYPE)
    assert b'size{topic="0"} 1\n' in answer.body
    assert b"memory 7\n" in answer.body


def test_the_loop_has_its_turn_between_slices() -> None:
    world = World(2 * SLICE_SAMPLES + 1)
    world.ask()
    for _ in range(2):
        assert world.executor.work == []
        world.loop.later.pop()()
    world.executor.run()
    assert world.answers[0].body.count(b"size{") == 2 * SLICE_SAMPLES + 1


def test_who_asks_meanwhile_gets_the_same_page() -> None:
    world = World()
    world.ask()
    world.ask()
    world.executor.run()
    world.ask()
    assert len(world.answers) == 3
    assert world.page.made == 1
    assert world.executor.work == []


def test_after_a_while_there_is_a_new_one() -> None:
    world = World()
    world.ask()
    world.executor.run()
    world.loop.now += FRESH_SECONDS
    world.value = 2
    world.ask()
    world.executor.run()
    assert b'size{topic="0"} 2\n' in world.answers[1].body


def test_a_source_that_fails_is_an_answer_and_not_the_end() -> None:
    world = World()
    world.value = -1
    world.ask()
    assert [answer.status for answer in world.answers] == [HTTPStatus.INTERNAL_SERVER_ERROR]
    world.value = 1
    world.ask()
    world.executor.run()
    assert world.answers[1].status is HTTPStatus.OK


def test_rendering_that_fails_is_an_answer_too() -> None:
    world = World()
    world.ask()
    _, on_done = world.executor.work.pop()
    on_done(Completion(None, RuntimeError("broken")))
    assert [answer.status for answer in world.answers] == [HTTPStatus.INTERNAL_SERVER_ERROR]
    world.ask()
    assert len(world.executor.work) == 1
