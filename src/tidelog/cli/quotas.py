"""``tidelog quotas``: list, set and delete the limits of clients, on any Kafka since 2.6.

librdkafka does not have these calls, so they go through ``tidelog.client.quotas``, which speaks plaintext only.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from tidelog.cli.errors import CommandFailed
from tidelog.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    PlaintextOption,
    plaintext_options,
    read_pairs,
)
from tidelog.cli.output import make_console, say, show_json, show_table
from tidelog.client.quotas import QuotaAdmin
from tidelog.client.wire.errors import ClientError

app = typer.Typer(help="List, set and delete quotas of client ids, users and addresses.", no_args_is_help=True)

ClientIdOption = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="The quotas of this client id.")]
UserOption = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The quotas of this user.")]
IpOption = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The quotas of this address.")]
DefaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--default", metavar="TYPE", help="The quotas of all that have none of their own: client-id, user or ip; repeatable."
    ),
]
ValidateOption = Annotated[bool, typer.Option("--validate-only", help="Only ask the broker whether it would accept the change.")]
TYPES = ("client-id", "user", "ip")
_NONE = "No quotas are set. To set one: tidelog quotas set --client-id NAME producer_byte_rate=1048576"


@app.command("list", epilog="Example: tidelog quotas list --client-id loader")
def list_command(
    client_id: ClientIdOption = None,
    user: UserOption = None,
    ip: IpOption = None,
    default: DefaultOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the quotas that are set."""
    entity = _entity(client_id, user, ip, default)
    with _admin(bootstrap, properties) as admin:
        found = admin.describe(entity)
    if as_json:
        for each in found:
            show_json({"entity": each.entity, "quotas": each.quotas})
        return
    console = make_console()
    if not found:
        say(
            console,
            _NONE if not entity else f"{_words(entity).capitalize()} has no quotas. To see all quotas: tidelog quotas list",
        )
        return
    rows = [(_words(each.entity), key, _number(value)) for each in found for key, value in each.quotas.items()]
    show_table(console, ("Of", "Quota", "Value"), rows)


@app.command("set", epilog="Example: tidelog quotas set --client-id loader producer_byte_rate=1048576 request_percentage=25")
def set_command(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA=VALUE...", help="A quota such as producer_byte_rate=1048576.")],
    client_id: ClientIdOption = None,
    user: UserOption = None,
    ip: IpOption = None,
    default: DefaultOption = None,
    validate_only: ValidateOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set quotas. They take effect at once."""
    values = {key: _value(key, text) for key, text in read_pairs(quotas, "QUOTA").items()}
    entity = _needed(_entity(client_id, user, ip, default))
    with _admin(bootstrap, properties) as admin:
        admin.alter(entity, values, validate_only=validate_only)
    if as_json:
        show_json({"entity": entity, "quotas": values, "validate_only": validate_only})
        return
    say(make_console(), f"{'Would set' if validate_only else 'Set'} {', '.join(values)} of {_words(entity)}.")


@app.command("delete", epilog="Example: tidelog quotas delete --client-id loader producer_byte_rate")
def delete_command(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[QUOTA]...", help="Only these quotas; by default, all.")] = None,
    client_id: ClientIdOption = None,
    user: UserOption = None,
    ip: IpOption = None,
    default: DefaultOption = None,
    validate_only: ValidateOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    properties: PlaintextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete quotas."""
    entity = _needed(_entity(client_id, user, ip, default))
    with _admin(bootstrap, properties) as admin:
        there = next((each.quotas for each in admin.describe(entity) if each.entity == entity), {})
        missing = [key for key in keys or () if key not in there]
        if missing or not there:
            raise CommandFailed(
                f"{_words(entity)} has no {', '.join(missing) if missing else 'quotas'}; to see all quotas: tidelog quotas list"
            )
        chosen = keys or list(there)
        admin.alter(entity, dict.fromkeys(chosen), validate_only=validate_only)
    if as_json:
        show_json({"entity": entity, "deleted": chosen, "validate_only": validate_only})
        return
    say(make_console(), f"{'Would delete' if validate_only else 'Deleted'} {', '.join(chosen)} of {_words(entity)}.")


@contextmanager
def _admin(bootstrap: str, properties: Sequence[str] | None) -> Iterator[QuotaAdmin]:
    options = plaintext_options(properties, "quotas")
    try:
        with QuotaAdmin(bootstrap, **options) as admin:
            yield admin
    except ClientError as error:
        raise CommandFailed(str(error)) from error


def _entity(client_id: str | None, user: str | None, ip: str | None, default: Sequence[str] | None) -> dict[str, str | None]:
    names = zip(TYPES, (client_id, user, ip), strict=True)
    entity: dict[str, str | None] = {kind: name for kind, name in names if name is not None}
    for kind in default or ():
        if kind not in TYPES:
            raise CommandFailed(f"--default {kind}: expected {', '.join(TYPES)}")
        if kind in entity:
            raise CommandFailed(f"give either --{kind} or --default {kind}, and only once")
        entity[kind] = None
    return entity


def _needed(entity: dict[str, str | None]) -> dict[str, str | None]:
    if not entity:
        raise CommandFailed("whose quotas? Give --client-id NAME, --user NAME, --ip ADDRESS or --default TYPE")
    return entity


def _words(entity: Mapping[str, str | None]) -> str:
    """Describe an entity, for example: client-id loader of the default user."""
    words = [f"the default {kind}" if entity[kind] is None else f"{kind} {entity[kind]}" for kind in TYPES if kind in entity]
    return " of ".join(words)


def _value(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandFailed(f"{key}={text}: expected a number after =") from None


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
