"""ops/kubernetes.yml and ops/Containerfile agree with each other and with what the broker has.

``make check-manifests`` compares the objects with the schemas of Kubernetes and KEDA, which it fetches.
"""

import re
import tomllib
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.cli.test_every_command import COMMANDS
from tests.docs.shell import ROOT
from tidelog import Worker, __version__
from tidelog.config.file import text_of

ALL: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "ops" / "kubernetes.yml").read_text()))
# The workers of the queue come last.
*_, QUEUE_WORKERS, QUEUE_SCALED = ALL
OBJECTS = {each["kind"]: each for each in ALL[:-2]}
CONTAINERFILE = (ROOT / "ops" / "Containerfile").read_text()
POD = OBJECTS["StatefulSet"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
SETTINGS = tomllib.loads(OBJECTS["ConfigMap"]["data"]["tidelog.toml"])


def test_the_settings_are_known_and_their_ports_are_those_of_the_pod() -> None:
    assert all(text_of(name, value) for name, value in SETTINGS.items())
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    assert SETTINGS["listeners"].endswith(f":{ports['kafka']}")
    assert SETTINGS["tidelog.metrics.listener"].endswith(f":{ports['metrics']}")
    assert {each["name"]: each["port"] for each in OBJECTS["Service"]["spec"]["ports"]} == ports
    exposed = re.search(r"^EXPOSE (.*)$", CONTAINERFILE, re.MULTILINE)
    assert exposed is not None
    assert sorted(map(int, exposed[1].split())) == sorted(ports.values())


def test_probes_ask_for_pages_that_the_broker_has() -> None:
    documented = set(re.findall(r"`(/health/\w+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text()))
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = CONTAINER[name]["httpGet"]
        assert probe["path"] in documented
        assert probe["port"] == "metrics"


def test_names_and_labels_meet() -> None:
    labels = POD["metadata"]["labels"]
    assert OBJECTS["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    host = f"{OBJECTS['StatefulSet']['metadata']['name']}-0.{OBJECTS['Service']['metadata']['name']}:9092"
    assert SETTINGS["advertised.listeners"] == f"PLAINTEXT://{host}"
    assert OBJECTS["ScaledObject"]["spec"]["triggers"][0]["metadata"]["bootstrapServers"] == host
    assert CONTAINER["image"] == f"tidelog:{__version__}"


def test_the_workers_are_those_that_are_scaled() -> None:
    deployment, scaled = OBJECTS["Deployment"], OBJECTS["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert "replicas" not in deployment["spec"], "whoever applies the file again would undo what KEDA decided"
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    program, *words = container["command"]
    assert program == "tidelog"
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options == {"--metrics-port": str(port["containerPort"]), "--metrics-host": "0.0.0.0"}
    assert set(options) <= {option for each in COMMANDS["worker run"].params for option in each.opts}
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": port["name"]}
    # The comment says how the worker is made; a drain must fit into the time that Kubernetes gives it.
    text = (ROOT / "ops" / "kubernetes.yml").read_text()
    (made,) = re.findall(r"`worker = (Worker\(.*\))`", text)
    metadata = scaled["triggers"][0]["metadata"]
    worker = eval(made, {"Worker": Worker})
    assert (worker._options.group, worker._options.topics) == (metadata["consumerGroup"], (metadata["topic"],))
    assert worker._options.addresses == metadata["bootstrapServers"]
    assert worker._options.drain_timeout < pod["spec"]["terminationGracePeriodSeconds"]


def test_the_workers_of_the_queue_are_scaled_on_a_page_that_the_broker_has() -> None:
    scaled = QUEUE_SCALED["spec"]
    assert QUEUE_SCALED["kind"] == "ScaledObject"
    assert scaled["scaleTargetRef"]["name"] == QUEUE_WORKERS["metadata"]["name"]
    pod = QUEUE_WORKERS["spec"]["template"]
    assert QUEUE_WORKERS["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert "replicas" not in QUEUE_WORKERS["spec"]
    url = urlsplit(scaled["triggers"][0]["metadata"]["url"])
    service = OBJECTS["Service"]
    assert str(url.hostname).split(".")[0] == service["metadata"]["name"]
    assert url.port in [each["port"] for each in service["spec"]["ports"] if each["name"] == "metrics"]
    # The comment names the queue; tests/server/test_monitoring.py asks for the page.
    (queue,) = re.findall(r'`Queue\("[^"]+", "([^"]+)"\)`', (ROOT / "ops" / "kubernetes.yml").read_text())
    assert (url.path, url.query) == (f"/queues/{queue}", f"group={queue}")
    guide = (ROOT / "docs" / "guides" / "scaling-on-lag.md").read_text()
    (shown,) = re.findall(r"```yaml\n(triggers:.*?)```", guide, re.DOTALL)
    assert yaml.safe_load(shown)["triggers"] == scaled["triggers"]


def test_the_data_and_the_settings_are_where_the_broker_looks() -> None:
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert SETTINGS["log.dirs"].startswith(mounts["data"] + "/")
    assert f'"--config", "{mounts["settings"]}/tidelog.toml"' in CONTAINERFILE
    user = POD["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}\n" in CONTAINERFILE
    assert f"--uid {user} " in CONTAINERFILE
