"""``tidelog profile``: clusters by name, in a file of the user.

The file is ``profiles.toml`` in ``$XDG_CONFIG_HOME/tidelog`` (``~/.config/tidelog``), or whatever ``TIDELOG_PROFILES`` names:

    current = "staging"

    [profiles.staging]
    bootstrap = "kafka-1:9092,kafka-2:9092"
    properties = { "security.protocol" = "SASL_SSL", "sasl.username" = "me", "sasl.password" = "env:STAGING_PASSWORD" }

Secrets are in it by reference only: ``env:NAME`` is a variable of the environment, ``file:PATH`` the first line of a file. Which
cluster a command talks to is decided in this order: ``-b``, ``TIDELOG_BOOTSTRAP``, ``tidelog --profile``, ``TIDELOG_PROFILE``,
the profile in use, 127.0.0.1:9092. The properties of a profile go with its address and with no other.

The file is replaced as a whole, so a crash leaves the old one or the new one.
"""

import json
import os
import re
import tomllib
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.cli import hints
from tidelog.cli.errors import CommandFailed

app = typer.Typer(help="Name clusters, and choose the one that commands talk to.", no_args_is_help=True)

FILE_VARIABLE = "TIDELOG_PROFILES"
NAME_VARIABLE = "TIDELOG_PROFILE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one document per line.")]

# The profile that ``tidelog --profile`` names.
_chosen: ContextVar[str | None] = ContextVar("chosen", default=None)


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster: its address, and librdkafka properties in which secrets are references."""

    name: str
    bootstrap: str
    properties: dict[str, str] = field(default_factory=dict)

    def resolved(self) -> dict[str, str]:
        """The properties with the secrets themselves."""
        return {name: _resolve(value, self.name) for name, value in self.properties.items()}


@dataclass(slots=True)
class Profiles:
    """The file."""

    path: Path
    current: str | None = None
    by_name: dict[str, Profile] = field(default_factory=dict)

    def find(self, name: str) -> Profile:
        if name not in self.by_name:
            known = ", ".join(self.by_name) or "none"
            raise CommandFailed(f"there is no profile {name} in {self.path}, only {known}; to add it: tidelog profile add {name}")
        return self.by_name[name]

    def save(self) -> None:
        lines = [f"current = {json.dumps(self.current)}", ""] if self.current is not None else []
        for profile in self.by_name.values():
            lines += [f"[profiles.{json.dumps(profile.name)}]", f"bootstrap = {json.dumps(profile.bootstrap)}"]
            pairs = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in profile.properties.items())
            lines += [f"properties = {{ {pairs} }}" if pairs else "properties = {}", ""]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text("\n".join(lines), encoding="utf-8")
        new.replace(self.path)


def load() -> Profiles:
    """The profiles of the user; none if there is no file."""
    path = _path()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles(path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}") from error
    try:
        found = {name: _read(name, table) for name, table in document.get("profiles", {}).items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise CommandFailed(f"{path}: a profile is a table with bootstrap and properties: {error}") from error
    return Profiles(path, document.get("current"), found)


def choose(name: str | None) -> None:
    """Remember ``tidelog --profile NAME`` for this command."""
    _chosen.set(name)
    if name is not None:
        hints.remember_profile(name)


def current() -> Profile | None:
    """The profile that commands use when they are not told an address."""
    profiles = load()
    name = _chosen.get() or os.environ.get(NAME_VARIABLE) or profiles.current
    return None if name is None else profiles.find(name)


def _read(name: str, table: dict[str, Any]) -> Profile:
    return Profile(name, str(table["bootstrap"]), {key: str(value) for key, value in table.get("properties", {}).items()})


def _path() -> Path:
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tidelog" / "profiles.toml"


def _resolve(value: str, profile: str) -> str:
    kind, separator, reference = value.partition(":")
    if not separator or kind not in ("env", "file"):
        return value
    if kind == "env":
        found = os.environ.get(reference)
        if found is None:
            raise CommandFailed(f"profile {profile} refers to the variable {reference}, which is not set")
        return found
    try:
        return Path(reference).expanduser().read_text(encoding="utf-8").partition("\n")[0]
    except OSError as error:
        raise CommandFailed(f"profile {profile} refers to {reference}: {error.strerror}") from error


# -- commands --------------------------------------------------------------------------------------------------------------------


@app.command(
    "add",
    epilog="Example: tidelog profile add staging -b kafka-1:9092 -X security.protocol=SSL -X ssl.key.password=env:KEY_PASSWORD",
)
def add_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")],
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "--bootstrap-server", "-b", metavar="HOST:PORT", help="The cluster's address.")
    ],
    properties: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="NAME=VALUE", help="A librdkafka property; a secret as env:NAME or file:PATH; repeatable."),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a profile, or change it."""
    from tidelog.cli.kafka import read_pairs

    if not _NAME.fullmatch(name):
        raise CommandFailed(f"{name!r} cannot be a profile's name: it has letters, digits, dots, - and _, 64 at most")
    pairs = read_pairs(properties or [], "-X")
    for key, value in pairs.items():
        if hints.is_secret_name(key) and not value.startswith(("env:", "file:")):
            raise CommandFailed(f"-X {key}: a profile keeps no secrets; refer to a variable (env:NAME) or to a file (file:PATH)")
    profiles = load()
    profiles.by_name[name] = Profile(name, bootstrap, pairs)
    if use:
        profiles.current = name
    profiles.save()
    _report(profiles.by_name[name], profiles.current == name, as_json, f"Saved {name} in {profiles.path}.")


@app.command("use", epilog="Example: tidelog profile use staging")
def use_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The profile's name; none with --none.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile: commands go to 127.0.0.1:9092 again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the cluster that commands talk to when they are not told an address."""
    profiles = load()
    if (name is None) != none:
        raise CommandFailed("give the name of a profile, or --none")
    profiles.current = None if name is None else profiles.find(name).name
    profiles.save()
    if name is None:
        _report(None, False, as_json, "No profile is in use.")
    else:
        _report(profiles.by_name[name], True, as_json, f"Commands now talk to {name}, {profiles.by_name[name].bootstrap}.")


@app.command("remove", epilog="Example: tidelog profile remove staging")
def remove_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")], as_json: JsonOption = False
) -> None:
    """Remove a profile."""
    profiles = load()
    removed = profiles.find(name)
    del profiles.by_name[name]
    if profiles.current == name:
        profiles.current = None
    profiles.save()
    _report(removed, False, as_json, f"Removed {name}.")


@app.command("list", epilog="Example: tidelog profile list")
def list_command(as_json: JsonOption = False) -> None:
    """List the profiles. Secrets are shown as references, which is how they are kept."""
    from tidelog.cli.output import make_console, say, show_json, show_table

    profiles = load()
    if as_json:
        for each in profiles.by_name.values():
            show_json(_document(each, each.name == profiles.current))
        return
    console = make_console()
    if not profiles.by_name:
        say(console, "There are no profiles yet. To add one: tidelog profile add NAME -b HOST:PORT")
        return
    rows = [
        ("yes" if each.name == profiles.current else "", each.name, each.bootstrap, _properties_text(each))
        for each in profiles.by_name.values()
    ]
    show_table(console, ("In use", "Name", "Address", "Properties"), rows)


def _properties_text(profile: Profile) -> str:
    return " ".join(f"{name}={value}" for name, value in profile.properties.items())


def _document(profile: Profile, is_current: bool) -> dict[str, object]:
    document = {"name": profile.name, "bootstrap": profile.bootstrap, "properties": profile.properties}
    return {**document, "in_use": is_current}


def _report(profile: Profile | None, is_current: bool, as_json: bool, line: str) -> None:
    from tidelog.cli.output import make_console, say, show_json

    if as_json:
        show_json({"in_use": False} if profile is None else _document(profile, is_current))
    else:
        say(make_console(), line)
