"""``tidelog start``: a broker, in the foreground, until Ctrl-C or SIGTERM.

Settings come from a file (``--config``), then from ``-o``, then from ``--data``, ``--listener`` and ``--metrics``; the later
wins. What is in force is printed to standard output once clients can connect; events go to standard error, one line each (as
JSON, the first of them says what is in force instead).
"""

import errno
import logging
import sys
from typing import Annotated, NoReturn

import typer

from tidelog import __version__
from tidelog.config.broker import METRICS_LISTENER
from tidelog.config.file import read_toml
from tidelog.ports.clock import RealClock
from tidelog.server.event_log import EventLog, EventLogHandler, LogFormat, LogLevel
from tidelog.server.process import Serving, run_broker

app = typer.Typer()

DEFAULT_ADDRESS = "127.0.0.1:9092"
METRICS_EXAMPLE = "127.0.0.1:9644"


@app.command("start", epilog="Example: tidelog start --data data --listener 127.0.0.1:9092 -o log.retention.hours=24")
def start_command(
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="The data directory; made if it is missing.", show_default="data"),
    ] = None,
    listener: Annotated[
        str | None,
        typer.Option(
            "--listener", metavar="HOST:PORT", help="Where to listen; port 0 is any free one.", show_default=DEFAULT_ADDRESS
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help=f"Where /metrics, /health/live and /health/ready are served, for example {METRICS_EXAMPLE}.",
            show_default="nowhere",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Settings in TOML, under Kafka's names (tidelog.toml).")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="One setting; may be given several times.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plaintext listeners that other machines can reach.")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How events are written.")] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least that is written; debug names every connection that ends.")
    ] = LogLevel.INFO,
) -> int:
    """Start a broker on this machine."""
    settings = read_settings(config, override or [])
    if data is not None:
        settings["log.dirs"] = data
    if listener is not None:
        settings["listeners"] = listener
    if metrics is not None:
        settings[METRICS_LISTENER] = metrics
    events = EventLog(_write_event, RealClock(), log_format, log_level)
    logger = logging.getLogger("tidelog")
    handler = EventLogHandler(events)
    logger.addHandler(handler)
    level_before = logger.level
    logger.setLevel(log_level.number)

    def on_serving(serving: Serving) -> None:
        if log_format is LogFormat.TEXT:
            sys.stdout.write(banner(serving))
            sys.stdout.flush()
        else:
            events.report("started", serving.facts())

    try:
        code = run_broker(settings, report=events.report, on_serving=on_serving, may_be_insecure=insecure)
    except OSError as error:
        _fail_to_listen(error)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
    events.report("stopped", {"is_clean": code == 0})
    return code


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
    """What a newcomer wants to know, and what to type next."""
    address = str(serving.advertised)
    bootstrap = "" if address == DEFAULT_ADDRESS else f" --bootstrap {address}"
    if serving.flush_messages == 1:
        durability = "acknowledged (acks=all) and visible only when on disk: flush.messages=1"
    else:
        durability = (
            f"acknowledged and visible from the page cache, a power cut may lose it: flush.messages={serving.flush_messages}"
        )
    rows = [
        (
            "listening on",
            f"{serving.listener} (plaintext)" + ("" if address == str(serving.listener) else f", known as {address}"),
        ),
        ("data", f"{serving.data_path} ({_count(serving)})"),
        *([("metrics", f"http://{serving.metrics}/metrics")] if serving.metrics is not None else []),
        ("durability", durability),
        ("try next", f"echo hello | tidelog produce greetings{bootstrap}"),
        ("", f"tidelog consume greetings --from-beginning{bootstrap}"),
        ("stop", "Ctrl-C"),
    ]
    title = f"Tidelog {__version__}: broker {serving.node_id} of cluster {serving.cluster_id}"
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
        message = f"{error.filename} is taken: another broker may be running; stop it, or choose another with --listener"
        raise OSError(message) from error
    raise error
