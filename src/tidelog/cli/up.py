"""``tidelog up``: run a whole cluster on this machine, one process per broker, until Ctrl-C or SIGTERM.

    DIR/cluster.json   the layout: the cluster's id, and the nodes with their ports; made once
    DIR/broker-1       the data directory of node 1
    DIR/broker-1.log   its events, one line each

The decisions are in ``server.supervisor``. This module carries them out: it starts processes (``server.supervised``), notices
when they serve or end, and tells the person at the terminal. Every port stays reserved by a socket that is bound and never
listens, so that a broker which is started again finds its ports free.
"""

import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tidelog import __version__
from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import JsonOption
from tidelog.cli.output import count_of
from tidelog.cli.start import read_settings
from tidelog.config.broker import BROKER
from tidelog.config.definition import parse
from tidelog.log.recovery.directory_opening import lock_for_use
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk
from tidelog.server.cluster_layout import (
    BROKERS_MAX,
    HOST,
    CannotShrink,
    ClusterLayout,
    NodePorts,
    data_path_of,
    format_nodes,
    grow_layout,
    make_layout,
    ports_from,
    read_layout,
    shrink_layout,
)
from tidelog.server.supervisor import Announce, KillBroker, Order, StartBroker, StopBroker, Supervisor

app = typer.Typer()

DEFAULT_BROKERS = 3
DEFAULT_BASE_PORT = 9092
DEFAULT_DATA = "cluster"
# A log that has grown to this size is put aside when its broker starts; the one before it is dropped.
LOG_BYTES_MAX = 16 << 20
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@app.command("up", epilog="Example: tidelog up --brokers 3 --data cluster --base-port 9092")
def up_command(
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            min=1,
            max=BROKERS_MAX,
            help="How many brokers; if there are others, it grows or shrinks.",
            show_default="3",
        ),
    ] = None,
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="The cluster's directory; made if missing.")] = DEFAULT_DATA,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            metavar="PORT",
            min=0,
            help="The first broker's port for clients; the others follow. 0 means any free ports.",
            show_default="9092",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings for every broker.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="A setting for every broker; repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Run a cluster on this machine: one process per broker."""
    disk, path = RealDisk(), os.path.abspath(data)
    settings = read_settings(config, override or [])
    lock = lock_for_use(disk, path)
    try:
        layout = _find_layout(path, brokers, base_port)
        _check_settings(layout, path, settings)
        if brokers is not None and brokers > len(layout.nodes):
            layout = _grown(disk, path, layout, brokers - len(layout.nodes))
        if brokers is not None and brokers < len(layout.nodes):
            layout = _shrunk(disk, path, layout, brokers)
        with _reserved([port for node in layout.nodes for port in node.ports]):
            format_nodes(disk, RealRandomness(), RealClock(), path, layout)
            return _Terminal(layout, path, settings, as_json).run()
    finally:
        lock.release()


# -- the layout ------------------------------------------------------------------------------------------------------------------


def _find_layout(path: str, brokers: int | None, base_port: int | None) -> ClusterLayout:
    """The layout in the directory, or a new one. Raises CommandFailed if the command line asks for another."""
    layout = read_layout(path)
    if layout is None:
        return make_layout(RealRandomness(), _choose_ports(brokers or DEFAULT_BROKERS, base_port))
    first = layout.nodes[0].client
    if brokers not in (None, len(layout.nodes)) and not layout.is_formatted:
        raise CommandFailed(f"the cluster in {path} has never been started; leave out --brokers once, then change it")
    if base_port not in (None, 0, first):
        raise CommandFailed(f"the cluster in {path} has its clients at port {first}; leave out --base-port to run it")
    return layout


def _grown(disk: RealDisk, path: str, layout: ClusterLayout, added: int) -> ClusterLayout:
    """The ports of new brokers follow those of the others if these follow each other, else they are any free ones."""
    count = len(layout.nodes)
    try:
        ports = ports_from(layout.nodes[0].client, count + added)
    except ValueError:
        ports = ()
    is_in_order = ports[:count] == tuple(node.ports for node in layout.nodes)
    return grow_layout(disk, RealRandomness(), path, layout, ports[count:] if is_in_order else _choose_ports(added, 0))


def _shrunk(disk: RealDisk, path: str, layout: ClusterLayout, brokers: int) -> ClusterLayout:
    try:
        return shrink_layout(disk, path, layout, brokers)
    except CannotShrink as error:
        count = count_of(len(layout.nodes), "broker")
        raise CommandFailed(f"the cluster of {count} in {path} cannot do with {brokers}: {error}") from error


def _choose_ports(broker_count: int, base_port: int | None) -> tuple[NodePorts, ...]:
    if base_port == 0:
        with _reserved([0] * 3 * broker_count) as ports:
            return tuple((ports[at], ports[at + 1], ports[at + 2]) for at in range(0, len(ports), 3))
    try:
        return ports_from(DEFAULT_BASE_PORT if base_port is None else base_port, broker_count)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--base-port") from None


def _check_settings(layout: ClusterLayout, path: str, settings: Mapping[str, str]) -> None:
    """Find what is wrong with the settings before anything is started."""
    for node_id in layout.node_ids:
        own = layout.settings(node_id, path)
        for name in settings:
            if name in own:
                raise CommandFailed(f"{name}: tidelog up sets this for each broker itself; leave it out")
        parse(BROKER, {**layout.replication_settings(settings), **own})


@contextmanager
def _reserved(ports: Sequence[int]) -> Iterator[list[int]]:
    """Keep these ports from everybody but our own processes; 0 means any. Yields their numbers."""
    sockets: list[socket.socket] = []
    try:
        for port in ports:
            reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets.append(reservation)
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                reservation.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                advice = "stop what uses it, or make a cluster elsewhere with --base-port and --data"
                raise CommandFailed(f"{HOST}:{port} is already in use; {advice}") from error
        yield [reservation.getsockname()[1] for reservation in sockets]
    finally:
        for reservation in sockets:
            reservation.close()


# -- the processes ---------------------------------------------------------------------------------------------------------------


class _BrokerProcess:
    """One process from its start to its end. It writes one line to its output, when it serves or knows that it never will."""

    def __init__(self, settings: Mapping[str, str], log_path: str) -> None:
        self.facts: dict[str, Any] | None = None
        self._output = b""
        # -P keeps the working directory out of the import path: a file there must not be imported.
        command = [sys.executable, "-P", "-m", "tidelog.server.supervised", json.dumps(settings), str(os.getpid())]
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the command is ours: this interpreter and a module of this package
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # A group of its own: Ctrl-C reaches only us, and we stop the brokers in order.
                process_group=0,
            )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)

    def read(self) -> bool:
        """Read what it wrote. Returns whether there may be more."""
        while True:
            try:
                data = os.read(self.stdout.fileno(), 4096)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._output += data
            if self.facts is None and b"\n" in self._output:
                self.facts = json.loads(self._output.partition(b"\n")[0])


class _Terminal:
    """Runs the processes, and says what a person at the terminal wants to know."""

    def __init__(self, layout: ClusterLayout, path: str, settings: Mapping[str, str], as_json: bool) -> None:
        self._layout = layout
        self._as_json = as_json
        self._path = path
        self._settings = settings
        self._processes: dict[int, _BrokerProcess] = {}
        self._reasons: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_count = 0

    def run(self) -> int:
        count = count_of(len(self._layout.nodes), "broker")
        line = f"Tidelog {__version__}: cluster {self._layout.cluster_id}, {count}, data in {self._path}"
        self._say("starting", line, cluster_id=self._layout.cluster_id, brokers=len(self._layout.nodes), data=self._path)
        supervisor = Supervisor(self._layout.node_ids, _now_ms())
        with self._signals():
            try:
                while not supervisor.is_over:
                    for order in supervisor.take_orders():
                        self._carry_out(order)
                    self._wait(supervisor.next_deadline_ms)
                    self._tell(supervisor)
                for order in supervisor.take_orders():
                    self._carry_out(order)
            finally:
                for running in self._processes.values():
                    running.process.kill()
                    running.process.wait()
        return supervisor.exit_code

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals, also those about processes that ended, wake ``_wait``."""
        waking, woken = socket.socketpair()
        with waking, woken, self._selector:
            waking.setblocking(False)
            woken.setblocking(False)
            self._selector.register(woken, selectors.EVENT_READ)
            handlers = {number: signal.signal(number, self._on_stop) for number in _STOP_SIGNALS}
            handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
            wakeup_before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(wakeup_before)
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    def _on_stop(self, *_: object) -> None:
        self._stop_count += 1

    def _wait(self, deadline_ms: int | None) -> None:
        seconds = None if deadline_ms is None else max(0, deadline_ms - _now_ms()) / 1000
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.recv(4096)
            elif not self._processes[key.data].read():
                self._selector.unregister(key.fileobj)

    def _tell(self, supervisor: Supervisor) -> None:
        """Tell the supervisor what happened since the last time."""
        for node_id, running in list(self._processes.items()):
            status = running.process.poll()
            if status is None:
                if running.facts is not None and "error" not in running.facts:
                    supervisor.ready(node_id, _now_ms())
                continue
            running.read()
            if running.stdout in self._selector.get_map():
                self._selector.unregister(running.stdout)
            running.stdout.close()
            del self._processes[node_id]
            self._reasons[node_id] = str((running.facts or {}).get("error", ""))
            supervisor.ended(node_id, status, _now_ms())
        while self._stop_count:
            self._stop_count -= 1
            supervisor.stop(_now_ms())
        supervisor.tick(_now_ms())

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, Announce):
            self._announce(order)
        elif isinstance(order, StartBroker):
            self._start(order.node_id)
        elif order.node_id in self._processes:
            number = {StopBroker: signal.SIGTERM, KillBroker: signal.SIGKILL}[type(order)]
            self._processes[order.node_id].process.send_signal(number)

    def _start(self, node_id: int) -> None:
        log_path = self._log_path(node_id)
        if os.path.exists(log_path) and os.path.getsize(log_path) > LOG_BYTES_MAX:
            os.replace(log_path, f"{log_path}.1")
        chosen = self._layout.replication_settings(self._settings)
        settings = {**chosen, **self._layout.settings(node_id, self._path)}
        running = _BrokerProcess(settings, log_path)
        self._processes[node_id] = running
        self._selector.register(running.stdout, selectors.EVENT_READ, node_id)

    def _announce(self, announcement: Announce) -> None:
        node_id, detail = announcement.node_id, announcement.detail
        if node_id is None:
            servers = self._layout.bootstrap_servers
            self._say("serving", f"bootstrap  {servers}   (Ctrl-C stops all)", bootstrap_servers=servers)
            return
        self._say(announcement.event, self._line(announcement, node_id), broker=node_id, detail=detail)

    def _line(self, announcement: Announce, node_id: int) -> str:
        name, detail = f"broker {node_id}", announcement.detail
        if announcement.event == "ready":
            address, pid = f"{HOST}:{self._layout.node(node_id).client}", self._processes[node_id].process.pid
            return f"{name}   {address}  ready after {detail}, process {pid}, log {self._log_path(node_id)}"
        if announcement.event == "stopped":
            return f"{name}   stopped" + ("" if detail == "exit code 0" else f" ({detail})")
        if announcement.event == "failed":
            reason = self._reasons.get(node_id) or f"{detail}; see {self._log_path(node_id)}"
            return f"{name}   did not start: {reason}"
        return f"{name}   {announcement.event}: {detail}"

    def _log_path(self, node_id: int) -> str:
        return f"{data_path_of(self._path, node_id)}.log"

    def _say(self, event: str, line: str, **facts: object) -> None:
        sys.stdout.write((json.dumps({"event": event, **facts}) if self._as_json else line) + "\n")
        sys.stdout.flush()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
