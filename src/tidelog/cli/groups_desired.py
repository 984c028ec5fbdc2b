"""``tidelog groups desired``: how many consumers a group needs, as a signal for an autoscaler.

Rates are measured by looking twice, ``--interval`` apart. What one answer must remember for the next, so that they do not flap
(``tidelog.groups.desired``), is kept in memory with ``--watch`` and in a file with ``--state-file``. A single call with neither
has no memory: a step down then happens at once, and the autoscaler has to do the stabilizing.
"""

import json
import math
import os
import sys
import time
from typing import Annotated, Any

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_lag import GroupLag, LagMeter
from tidelog.cli.groups_reset import GroupOption, NameArgument
from tidelog.cli.kafka import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, KafkaCluster, PropertiesOption, choose_one
from tidelog.cli.output import make_console, say, show_json
from tidelog.cli.share_groups import SHARE, ShareGroups
from tidelog.cli.times import duration_text
from tidelog.groups.desired_consumers import Desired, DesiredRules, DesiredState, GroupLoad, desired_consumers

# What group.share.max.size allows by default.
SHARE_MEMBERS_MAX = 200
EPILOG = "Example: tidelog groups desired --group billing --target-lag-seconds 30 --json"


def desired_command(
    name: NameArgument = None,
    group: GroupOption = None,
    target_lag_seconds: Annotated[
        float, typer.Option("--target-lag-seconds", min=0.1, help="How old unread messages may become.")
    ] = 30.0,
    current: Annotated[
        int | None, typer.Option("--current", min=0, help="How many consumers there are; by default, the group's members.")
    ] = None,
    least: Annotated[int, typer.Option("--min", min=0, help="Never fewer; 0 allows none when there is no work.")] = 1,
    most: Annotated[
        int | None,
        typer.Option("--max", min=1, help="Never more; in any case not more than there are partitions, except in a share group."),
    ] = None,
    catch_up_seconds: Annotated[
        float, typer.Option("--catch-up-seconds", min=1, help="How fast to work off what exceeds the target.")
    ] = 120.0,
    stable_seconds: Annotated[
        float, typer.Option("--stable-seconds", min=0, help="How long the lag must be low before a step down.")
    ] = 300.0,
    interval: Annotated[float, typer.Option("--interval", min=1, help="Seconds over which the rates are measured.")] = 5.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until interrupted.")] = False,
    state_file: Annotated[
        str | None, typer.Option("--state-file", metavar="FILE", help="Where one call remembers its answer for the next.")
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PropertiesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many consumers a group needs, from its lag and its measured rates."""
    group_id = choose_one(name, group, "group")
    rules = DesiredRules(
        target_lag_seconds=target_lag_seconds,
        partitions=0,
        consumers_min=least,
        consumers_max=most,
        catch_up_seconds=catch_up_seconds,
        stable_seconds=stable_seconds if watch or state_file is not None else 0.0,
    )
    state = _read_state(state_file) if state_file is not None else DesiredState()
    cluster = KafkaCluster(bootstrap, properties)
    with cluster.errors(), cluster.admin() as admin, ShareGroups(cluster) as shares:
        meter = LagMeter(cluster, admin, shares)
        meter.measure(group_id)
        while True:
            time.sleep(interval)
            found = meter.measure(group_id)
            partitions = len(_partitions(found))
            # Any number of members share a partition.
            rules = rules._replace(partitions=max(SHARE_MEMBERS_MAX, most or 0) if found.group.type == SHARE else partitions)
            if not partitions:
                raise CommandFailed(
                    f"group {group_id} has neither partitions nor committed offsets yet, so there is nothing to measure"
                )
            load = _load(found, current)
            # The wall clock, because a state file outlives this machine's uptime; a clock that goes back only delays a step.
            desired = desired_consumers(load, rules, state, time.time())
            state = desired.state
            if state_file is not None:
                _write_state(state_file, state)
            _show(group_id, load, partitions, desired, as_json)
            sys.stdout.flush()  # A pipe would keep the line until its buffer is full.
            if not watch:
                return


def _partitions(found: GroupLag) -> set[tuple[str, int]]:
    return {(row.topic, row.partition) for row in found.rows if row.bounds is not None}


def _load(found: GroupLag, current: int | None) -> GroupLoad:
    unread = sum(lag.lag_messages - lag.lost_messages for lag in found.lags)
    consumers = len(found.group.members) if current is None else current
    return GroupLoad(consumers, unread, found.seconds, found.consumed_per_second, found.produced_per_second)


def _show(group_id: str, load: GroupLoad, partitions: int, desired: Desired, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "group": group_id,
                "desired": desired.consumers,
                "current": load.consumers,
                "partitions": partitions,
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
    behind = f"{load.unread:,} unread, {duration_text(load.lag_seconds)} behind"
    say(make_console(), f"{desired.consumers} (now {load.consumers}; {behind}; {rates}): {desired.reason}")


def _read_state(path: str) -> DesiredState:
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
    except FileNotFoundError:
        return DesiredState()
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CommandFailed(f"{path} is not a state file of this command; remove it to start over") from None
    if not isinstance(document, dict) or set(document) != set(DesiredState._fields):
        raise CommandFailed(f"{path} is not a state file of this command; remove it to start over")
    for value in document.values():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not is_number:
            raise CommandFailed(f"{path} is not a state file of this command; remove it to start over")
    return DesiredState(**document)


def _write_state(path: str, state: DesiredState) -> None:
    """Replace the file in one step, because the next call reads it."""
    part = f"{path}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(state._asdict(), file)
    os.replace(part, path)
