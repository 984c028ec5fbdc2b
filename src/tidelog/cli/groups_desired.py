"""``tidelog groups desired``: how many consumers a group needs, as a signal for an autoscaler.

The rates are measured by looking twice, ``--interval`` apart. What must be remembered from one answer to the next, so that they
do not flap (``tidelog.groups.desired``), is in memory with ``--watch`` and in a file with ``--state-file``. A single call without
either has no memory: a step down then waits for nothing, and the autoscaler's own stabilization has to.
"""

import json
import math
import os
import sys
import time
from typing import Annotated, Any

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_facts import Group, find
from tidelog.cli.groups_lag import GroupLag, LagMeter
from tidelog.cli.groups_text import duration
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, Cluster, JsonOption, PropertiesOption
from tidelog.cli.output import make_console, say, show_json
from tidelog.groups.desired_consumers import Desired, DesiredRules, DesiredState, GroupLoad, desired_consumers

EPILOG = "Example: tidelog groups desired --group billing --target-lag-seconds 30 --json"


def desired_command(
    name: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group's name.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="NAME", help="As GROUP.")] = None,
    target_lag_seconds: Annotated[float, typer.Option("--target-lag-seconds", min=0.1, help="How old may unread be?")] = 30.0,
    current: Annotated[
        int | None, typer.Option("--current", min=0, help="How many consumers there are; else the group's members are counted.")
    ] = None,
    least: Annotated[int, typer.Option("--min", min=0, help="Never fewer; 0 allows none when there is no work.")] = 1,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Never more; in any case not more than partitions.")] = None,
    catch_up_seconds: Annotated[
        float, typer.Option("--catch-up-seconds", min=1, help="How fast to read what is beyond the target.")
    ] = 120.0,
    stable_seconds: Annotated[
        float, typer.Option("--stable-seconds", min=0, help="How long the lag must be low before a step down.")
    ] = 300.0,
    interval: Annotated[float, typer.Option("--interval", min=1, help="Seconds between two looks, over which to measure.")] = 5.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again until interrupted.")] = False,
    state_file: Annotated[
        str | None, typer.Option("--state-file", metavar="FILE", help="What to remember from one call to the next.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many consumers the lag and the measured rates of a group ask for."""
    if name is not None and group is not None and name != group:
        raise CommandFailed(f"which group, {name} or {group}?")
    group_id = name or group
    if not group_id:
        raise CommandFailed("which group? Give its name")
    has_memory = watch or state_file is not None
    rules = DesiredRules(
        target_lag_seconds=target_lag_seconds,
        partitions=0,
        consumers_min=least,
        consumers_max=most,
        catch_up_seconds=catch_up_seconds,
        stable_seconds=stable_seconds if has_memory else 0.0,
    )
    state = _read_state(state_file) if state_file is not None else DesiredState()
    cluster = Cluster(bootstrap, properties)
    admin = cluster.admin()
    meter = LagMeter(cluster, admin)
    meter.measure(*find(cluster, admin, group_id))
    while True:
        time.sleep(interval)
        found = meter.measure(*find(cluster, admin, group_id))
        rules = rules._replace(partitions=len(_partitions(found)))
        if not rules.partitions:
            raise CommandFailed(f"group {group_id} has neither partitions nor committed offsets: nothing to go by yet")
        load = _load(found, current)
        # The wall clock, since a state file outlives the machine's; that one which goes back only waits longer.
        desired = desired_consumers(load, rules, state, time.time())
        state = desired.state
        if state_file is not None:
            _write_state(state_file, state)
        _show(found.group, load, rules, desired, as_json)
        sys.stdout.flush()  # A pipe would keep it until it is full.
        if not watch:
            return


def _partitions(found: GroupLag) -> set[tuple[str, int]]:
    return {(row.topic, row.partition) for row in found.rows if row.span is not None}


def _load(found: GroupLag, current: int | None) -> GroupLoad:
    unread = sum(lag.lag_messages - lag.lost_messages for lag in found.lags)
    consumers = len(found.group.members) if current is None else current
    return GroupLoad(consumers, unread, found.seconds, found.consumed_per_second, found.produced_per_second)


def _show(group: Group, load: GroupLoad, rules: DesiredRules, desired: Desired, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "group": group.group_id,
                "desired": desired.consumers,
                "current": load.consumers,
                "partitions": rules.partitions,
                "lag_messages": load.unread,
                "lag_seconds": load.lag_seconds,
                "consumed_per_second": load.consumed_per_second,
                "produced_per_second": load.produced_per_second,
                "consumer_rate": desired.state.consumer_rate,
                "reason": desired.reason,
            }
        )
        return
    rates = ", ".join(
        f"{text} {rate:,.1f}/s"
        for text, rate in (("in", load.produced_per_second), ("out", load.consumed_per_second))
        if rate is not None
    )
    behind = f"{load.unread:,} unread, {duration(load.lag_seconds)} behind"
    say(make_console(), f"{desired.consumers} (now {load.consumers}; {behind}; {rates}): {desired.reason}")


def _read_state(path: str) -> DesiredState:
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
    except FileNotFoundError:
        return DesiredState()
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CommandFailed(f"{path} is not a state file; remove it to begin anew") from None
    if not isinstance(document, dict) or set(document) != set(DesiredState._fields):
        raise CommandFailed(f"{path} is not a state file; remove it to begin anew")
    for value in document.values():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not is_number:
            raise CommandFailed(f"{path} is not a state file; remove it to begin anew")
    return DesiredState(**document)


def _write_state(path: str, state: DesiredState) -> None:
    """Whole or not at all: the next call reads it."""
    part = f"{path}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(state._asdict(), file)
    os.replace(part, path)
