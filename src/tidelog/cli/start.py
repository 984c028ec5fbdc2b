"""``tidelog start``: run a broker in the foreground until Ctrl-C or SIGTERM.

Settings come from a file (``--config``), then from ``-o``, then from ``--data``, ``--listener`` and ``--metrics``; the later ones
win. Once clients can connect, a banner on standard output shows the settings in force. Events go to standard error, one line
each; with ``--json`` they are JSON, and the first event replaces the banner.
"""

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from tidelog import __version__
from tidelog.build import build_name
from tidelog.config.broker import METRICS_LISTENER
from tidelog.config.file import read_toml
from tidelog.config.listeners import ListenerRole
from tidelog.ports.clock import RealClock
from tidelog.server.event_log import EventLog, EventLogHandler, LogFormat, LogLevel
from tidelog.server.process import Serving, run_broker

app = typer.Typer()

DEFAULT_ADDRESS = "127.0.0.1:9092"
METRICS_EXAMPLE = "127.0.0.1:9644"
# How the banner introduces the listeners after the first.
_ROLES = {ListenerRole.CLIENT: "and on", ListenerRole.INTER_BROKER: "for brokers", ListenerRole.CONTROLLER: "controllers"}


@app.command("start", epilog="Example: tidelog start --data data --listener 127.0.0.1:9092 -o log.retention.hours=24")
def start_command(
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="The data directory; it is created if it is missing.", show_default="data"),
    ] = None,
    listener: Annotated[
        str | None,
        typer.Option(
            "--listener", metavar="HOST:PORT", help="Where to listen; port 0 means any free port.", show_default=DEFAULT_ADDRESS
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help=f"Where to serve /metrics, /health/live and /health/ready, for example {METRICS_EXAMPLE}.",
            show_default="nowhere",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings under Kafka's names.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="A setting; repeatable.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plaintext listeners that other machines can reach.")
    ] = False,
    # What --json was called first, and what units and images of users may still say.
    log_format: Annotated[LogFormat, typer.Option("--log-format", hidden=True)] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least level to write; debug includes every connection that ends.")
    ] = LogLevel.INFO,
    as_json: Annotated[bool, typer.Option("--json", help="Write events, and errors, as JSON, one document per line.")] = False,
) -> int:
    """Start a broker on this machine."""
    log_format = LogFormat.JSON if as_json else log_format
    settings = read_settings(config, override or [])
    for name, value in (("log.dirs", data), ("listeners", listener), (METRICS_LISTENER, metrics)):
        if value is not None:
            settings[name] = value
    events = EventLog(_write_event, RealClock(), log_format, log_level)

    def on_serving(serving: Serving) -> None:
        if log_format is LogFormat.TEXT:
            sys.stdout.write(banner(serving))
            sys.stdout.flush()
        else:
            events.report("started", serving.facts())

    with _logging_to(events, log_level):
        try:
            code = run_broker(settings, report=events.report, on_serving=on_serving, may_be_insecure=insecure)
        except OSError as error:
            _fail_to_listen(error)
    events.report("stopped", {"is_clean": code == 0})
    return code


@contextmanager
def _logging_to(events: EventLog, level: LogLevel) -> Iterator[None]:
    """Turn Python's own log records of Tidelog into events, too."""
    logger = logging.getLogger("tidelog")
    handler = EventLogHandler(events)
    level_before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.number)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)


def read_settings(config: str | None, overrides: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    if config is not None:
        with open(config, encoding="utf-8") as file:
            settings.update(read_toml(file.read(), config))
    for text in overrides:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"{text!r}: expected KEY=VALUE", param_hint="-o")
        settings[name.strip()] = value
    return settings


def banner(serving: Serving) -> str:
    """Show what a newcomer wants to know, and what to type next."""
    client, *others = serving.listeners
    address = str(client.advertised)
    bootstrap = "" if address == DEFAULT_ADDRESS else f" --bootstrap {address}"
    if serving.flush_messages == 1:
        durability = "a write is acknowledged (acks=all) and visible only once it is on disk: flush.messages=1"
    else:
        durability = (
            "a write is acknowledged and visible in the page cache; a power cut may lose it: "
            f"flush.messages={serving.flush_messages}"
        )
    rows = [
        (
            "listening on",
            f"{client.address} (plaintext)" + ("" if address == str(client.address) else f", advertised as {address}"),
        ),
        *((_ROLES[listener.role], f"{listener.address} ({listener.name})") for listener in others),
        ("data", f"{serving.data_path} ({_count(serving)})"),
        *([("metrics", f"http://{serving.metrics}/metrics")] if serving.metrics is not None else []),
        ("durability", durability),
        ("try next", f"echo hello | tidelog produce greetings{bootstrap}"),
        ("", f"tidelog consume greetings --from-beginning{bootstrap}"),
        ("stop", "Ctrl-C"),
    ]
    title = f"Tidelog {__version__} ({build_name()}): broker {serving.node_id} of cluster {serving.cluster_id}"
    return "\n".join((title, *(f"  {name:<13} {text}" for name, text in rows))) + "\n"


def _count(serving: Serving) -> str:
    if not serving.topic_count:
        return "no topics yet"
    topics = f"{serving.topic_count} topic{'s' if serving.topic_count > 1 else ''}"
    return f"{topics}, {serving.partition_count} partition{'s' if serving.partition_count > 1 else ''}"


def _write_event(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


def _fail_to_listen(error: OSError) -> NoReturn:
    if error.errno == errno.EADDRINUSE:
        message = f"{error.filename} is already in use; stop the other broker, or choose another address with --listener"
        raise OSError(message) from error
    raise error
