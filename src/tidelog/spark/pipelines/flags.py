"""Command-line flags from a dataclass: a field is an option, and its metadata has the words for help.

``table`` becomes ``--table``, a field without a default is required, a bool is a flag, a ``tuple[str, ...]`` an option that may
be given several times. What the values mean is checked by the dataclass itself.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

Parameters = list[inspect.Parameter]
_KIND = inspect.Parameter.KEYWORD_ONLY


def parameters_of(options: type[Any]) -> Parameters:
    """As a function would have them that takes the fields one by one."""
    types = get_type_hints(options)
    return [_parameter(field, types[field.name]) for field in dataclasses.fields(options)]


def build(options: type[Any], given: Mapping[str, Any]) -> Any:
    """The dataclass from what the command line gave; others' parameters are left alone."""
    types = get_type_hints(options)
    names = [field.name for field in dataclasses.fields(options)]
    return options(**{name: tuple(given[name] or ()) if _is_repeatable(types[name]) else given[name] for name in names})


def function_with(parameters: Parameters, called: Callable[[Mapping[str, Any]], int], help_text: str) -> Callable[..., int]:
    """A function with this signature, which is what typer reads, that hands everything on."""

    def command(**given: Any) -> int:
        return called(given)

    # As inspect has it: a function may carry the signature that it shows.
    setattr(command, "__signature__", inspect.Signature(parameters, return_annotation=int))  # noqa: B010 - mypy knows no such name
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": int}
    command.__doc__ = help_text
    return command


def _parameter(field: "dataclasses.Field[Any]", kind: Any) -> inspect.Parameter:
    flag = f"--{field.name.replace('_', '-')}"
    default = field.default
    if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if _is_repeatable(kind):
        kind, default = (list[str], default) if default is dataclasses.MISSING else (list[str] | None, default or None)
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool and default is True else flag
    metavar = field.metadata.get("metavar")
    option = typer.Option(declaration, help=field.metadata.get("help", ""), metavar=None if kind is bool else metavar)
    is_required = default is dataclasses.MISSING
    return inspect.Parameter(
        field.name, _KIND, default=inspect.Parameter.empty if is_required else default, annotation=Annotated[kind, option]
    )


def _is_repeatable(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
