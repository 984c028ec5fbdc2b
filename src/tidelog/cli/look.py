"""What every help page looks like: plain text that fits the terminal, whole option names, and no types of Python.

A command group's module only says what its commands are; ``command_of`` gives them this look. The text is written here and not by
typer, whose boxes cut the names of options, name Python's types and take a tenth of a second to load.

The classes that typer hands around (contexts, parameters) are not exported by it, which is why they are ``Any`` here.
"""

import inspect
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from typer import core
from typer.main import get_command

from tidelog.cli.errors import ExitCode

# Wider lines are harder to read, on however wide a terminal.
WIDTH_MAX = 100
WIDTH_MIN = 40
# The first column may take so much; a longer name gets a line of its own.
NAME_WIDTH_MAX = 26
INDENT = "  "
# What a value is called where an option does not say it itself.
_VALUES = {"int": "N", "int range": "N", "float": "N", "float range": "N", "str": "TEXT", "list[str]": "TEXT", "list[int]": "N"}


class ReadableCommand(core.TyperCommand):
    """A command whose help has the common look."""

    def get_help(self, ctx: Any) -> str:
        return "\n".join(_page(self, ctx, usage_of(self, ctx)))


class ReadableGroup(core.TyperGroup):
    """A group of commands whose help has the common look."""

    def get_help(self, ctx: Any) -> str:
        return "\n".join([*_page(self, ctx, f"{usage_of(self, ctx)} COMMAND ..."), "", *self._commands(ctx)])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx), err=True)
            raise typer.Exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def summaries(self, ctx: Any) -> Mapping[str, str]:
        """The commands that help shows, and what each does."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {name: first_line(each.short_help or each.help) for name, each in found.items() if each and not each.hidden}

    def _commands(self, ctx: Any) -> Iterator[str]:
        yield "Commands:"
        yield from _columns(list(self.summaries(ctx).items()))


def command_of(app: typer.Typer, name: str) -> Any:
    """The command, or the group of commands, that ``app`` makes. An app with a command of that very name is that command."""
    is_command = any(each.name == name for each in app.registered_commands)
    for each in app.registered_commands:
        if each.cls in (None, core.TyperCommand):
            each.cls = ReadableCommand
    outer = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    outer.callback()(lambda: None)
    if is_command:
        outer.add_typer(app)
    else:
        outer.add_typer(app, name=name, cls=ReadableGroup)
    group = get_command(outer)
    assert isinstance(group, core.TyperGroup), "an app with a callback is a group"
    return group.commands[name]


def usage_of(command: Any, context: Any) -> str:
    """The words of the command, ``[OPTIONS]``, and its arguments: ``TOPIC``, ``[FILE]``, ``TOPIC...``."""
    arguments = [_argument_text(each) for each in command.get_params(context) if each.param_type_name == "argument"]
    return " ".join([context.command_path, "[OPTIONS]", *arguments])


def first_line(text: str | None) -> str:
    return inspect.cleandoc(text or "").partition("\n")[0]


def _page(command: Any, context: Any, usage: str) -> Iterator[str]:
    yield from textwrap.wrap(f"Usage: {usage}", _width(), subsequent_indent=" " * 7, **_WHOLE_WORDS)
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield ""
        yield from textwrap.wrap(paragraph, _width(), **_WHOLE_WORDS)
    parameters = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        rows = [_row(each, context) for each in parameters if each.param_type_name == kind]
        if rows:
            yield ""
            yield f"{title}:"
            yield from _columns(rows)
    if command.epilog:
        yield ""
        yield from textwrap.wrap(command.epilog, _width(), subsequent_indent=INDENT, **_WHOLE_WORDS)


# Words are options and names, which somebody copies or searches for.
_WHOLE_WORDS: Mapping[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _width() -> int:
    return max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size().columns))


def _columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Names on the left, what they mean on the right."""
    width = min(NAME_WIDTH_MAX, max(len(name) for name, _ in rows))
    margin = INDENT + " " * (width + 2)
    for name, text in rows:
        lines = textwrap.wrap(text, max(WIDTH_MIN // 2, _width() - len(margin)), **_WHOLE_WORDS)
        if len(name) > width or not lines:
            yield INDENT + name
        else:
            yield f"{INDENT}{name:<{width}}  {lines.pop(0)}"
        yield from (margin + line for line in lines)


def _row(parameter: Any, context: Any) -> tuple[str, str]:
    notes = [text for text in (_environment(parameter), _default(parameter, context)) if text]
    text = parameter.help or ""
    return _name(parameter, context), f"{text} [{'; '.join(notes)}]" if notes else text


def _name(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        return _bare(parameter)
    names = ", ".join([*(name for name in parameter.opts if name[:2] != "--"), *(n for n in parameter.opts if n[:2] == "--")])
    if parameter.is_flag:
        return names
    value = parameter.metavar or parameter.display_type(context).strip("<>")
    return f"{names} {_VALUES.get(value, value)}"


def _argument_text(parameter: Any) -> str:
    name = _bare(parameter) + ("" if parameter.nargs == 1 else "...")
    return name if parameter.required else f"[{name}]"


def _bare(parameter: Any) -> str:
    """The name of an argument without what says that it is optional or repeated."""
    return str(parameter.metavar or parameter.name.upper()).strip("[].")


def _environment(parameter: Any) -> str:
    name = parameter.envvar if getattr(parameter, "show_envvar", False) else None
    return f"or ${name}" if name else ""


def _default(parameter: Any, context: Any) -> str:
    if isinstance(parameter.show_default, str):
        return f"default: {parameter.show_default}"
    value = parameter.get_default(context, call=False)
    is_shown = parameter.show_default and value not in (None, False, (), []) and not parameter.is_eager
    if not is_shown or (parameter.param_type_name == "argument" and parameter.required):
        return ""
    return f"default: {getattr(value, 'value', value)}"
