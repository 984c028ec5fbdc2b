"""The worker's HTTP endpoint: what Prometheus and a supervisor see while it runs, and that it ends with the run."""

import json
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, running
from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.worker import Worker
from tidelog.worker.endpoint import WorkerEndpoint, health_page


def fetch(port: int | None, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_metrics_and_health_are_served_while_the_worker_runs(kafka: ToolkitBroker) -> None:
    place = Place(kafka.bootstrap)
    place.send(["good", "bad"])
    worker = place.worker(retries=1, metrics_port=0)

    @worker.handler
    def handle(message: Message) -> None:
        if message.value == b"bad":
            raise OSError("no")

    with running(worker) as run:
        run.until(
            lambda: worker.metrics().dead == 1 and worker.metrics().handled == 1 and bool(worker.metrics().lag), "all is done"
        )
        port = worker.metrics_port
        status, body = fetch(port, "/metrics")
        assert status == 200
        samples = {each.name: each.value for family in text_string_to_metric_families(body.decode()) for each in family.samples}
        assert samples["tidelog_worker_handled_total"] == 1
        assert samples["tidelog_worker_retried_total"] == 1
        assert samples["tidelog_worker_dead_total"] == 1
        assert samples["tidelog_worker_breaker_open"] == 0
        assert {"tidelog_worker_lag_messages", "tidelog_worker_in_flight_messages"} <= set(samples)
        status, body = fetch(port, "/health?verbose")
        assert (status, json.loads(body)) == (200, {"alive": True, "joined": True})
        assert fetch(port, "/else")[0] == 404
    assert worker.metrics_port is None
    assert port is not None
    with socket.create_server(("127.0.0.1", port)):
        pass  # The port is free again.


def test_a_worker_that_is_not_alive_is_unwell() -> None:
    endpoint = WorkerEndpoint("127.0.0.1", 0, {"/health": lambda: health_page(False, True)})
    try:
        status, body = fetch(endpoint.port, "/health")
        assert (status, json.loads(body)) == (503, {"alive": False, "joined": True})
        with pytest.raises(InvalidArgument, match=f"metrics_port={endpoint.port}: .* cannot be opened"):
            WorkerEndpoint("127.0.0.1", endpoint.port, {})
    finally:
        endpoint.close()


def test_whoever_runs_the_worker_decides_how_wide_it_is() -> None:
    worker = Worker("127.0.0.1:1", group="g", topics=["t"])
    with pytest.raises(InvalidArgument, match="concurrency= is a whole number from 1"):
        worker.configure(concurrency=0)
    with pytest.raises(InvalidArgument, match="metrics_port= is a whole number from 0 to 65535"):
        worker.configure(metrics_port=70_000)
