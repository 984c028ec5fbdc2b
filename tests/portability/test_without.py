"""The portable twins: one by one and all together, what only Linux has is taken away, and a broker still serves, survives being
killed, and loses nothing. ``make test-portable`` runs the suites of log, broker, server and client in the same way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAKEN_AWAY = Path(__file__).with_name("taken_away")
ALL = ("fdatasync", "gathered", "nowait", "sendfile", "fadvise", "nice", "syncfs", "prctl", "uvloop", "resource", "linux")

SERVES = """
import sys, tempfile, os
from tidelog import Consumer, Producer
from tidelog.cli.main import main
from tidelog.testing import Broker

value = os.urandom(300_000)
with tempfile.TemporaryDirectory() as directory, Broker(persist=directory) as broker:
    address = broker.bootstrap_servers
    with Producer(address, compression="none") as producer:
        producer.send("orders", value, key="a").result(60)
        producer.send("orders", "small", key="a").result(60)
    broker.kill()
    broker.start()
    with Consumer(address, topics=["orders"]) as consumer:
        found = []
        while len(found) < 2:
            found += consumer.poll(max_records=10, timeout=5)
    assert [message.value for message in found] == [value, b"small"]
    broker.stop()
    assert main(["log", "verify", directory, "--quiet"]) == 0
print("served")
"""
IMPORTS = """
import importlib, pkgutil, sys
sys.modules.pop("tidelog", None)
import tidelog
for package in ("tidelog.client", "tidelog.worker", "tidelog.deadletters"):
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        if not module.name.startswith("tidelog.client.fetch"):
            importlib.import_module(module.name)
for name in tidelog.__all__:
    getattr(tidelog, name)
print("imported")
"""


def run(script: str, *taken_away: str) -> str:
    path = os.pathsep.join((str(TAKEN_AWAY), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "TIDELOG_TEST_WITHOUT": ",".join(taken_away), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("taken_away", [*((name,) for name in ALL), ALL], ids=lambda names: "+".join(names))
def test_a_broker_serves_without(taken_away: tuple[str, ...]) -> None:
    assert run(SERVES, *taken_away) == "served\n"


def test_the_client_and_the_toolkit_can_be_imported_where_there_is_no_posix() -> None:
    """As on Windows: no fcntl, no resource, no uvloop. (The source for Spark needs pyarrow, and its workers need POSIX.)"""
    assert run(IMPORTS, *(name for name in ALL if name != "linux"), "posix") == "imported\n"


def test_they_are_really_gone() -> None:
    script = "import os; from tidelog.ports import system; print(hasattr(os, 'fdatasync'), system._uvloop, system.IS_LINUX)"
    assert run(script, *ALL) == "False None False\n"
    # On Linux itself, with a C library that lacks the two calls.
    script = "from tidelog.ports import system; print(system.IS_LINUX, system._find_syncfs(), system.signal_at_end_of_parent(15))"
    assert run(script, "syncfs", "prctl") == "True None False\n"


def test_on_macos_a_sync_reaches_the_disk() -> None:
    """Its ``fsync`` does not, and it has no ``fdatasync``. The number is Apple's."""
    script = """
import fcntl
fcntl.F_FULLFSYNC = 51
asked = []
fcntl.fcntl = lambda *words: asked.append(words)
from tidelog.ports import system
system.sync_data(7)
print(asked)
"""
    assert run(script, "fdatasync", "linux") == "[(7, 51)]\n"
