"""Every setting that is accepted is read by something, or its documentation says that it has no effect."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tidelog.config.broker import BROKER
from tidelog.config.definition import Definitions
from tidelog.config.groups import GROUP
from tidelog.config.topic import TOPIC

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tidelog"
# Only what runs in a broker counts: a client has settings of the same names.
PACKAGES = ("config", "log", "replication", "coordinator", "groups", "transactions", "controller", "broker", "server")
DEFINING_CALLS = ("Setting", "Synonym")
WITHOUT_EFFECT = ("without effect", "cannot be changed")


def texts_read(tree: ast.AST, *, in_config: bool) -> Iterator[str]:
    """String constants, also the last part of f-strings; not those that define a setting or check one against another."""
    for node in ast.iter_child_nodes(tree):
        if in_config and isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("check"):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DEFINING_CALLS:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        yield from texts_read(node, in_config=in_config)


def unread(definitions: Definitions, read: set[str]) -> set[str]:
    """Settings that no code names, neither as a whole nor, where the name is put together, by its end."""
    suffixes = tuple(text for text in read if text.count(".") > 1)
    return {
        name
        for name, setting in definitions.settings.items()
        if name not in read
        and not name.endswith(suffixes)
        and not any(words in setting.documentation for words in WITHOUT_EFFECT)
    }


READ = {
    text
    for package in PACKAGES
    for path in (SOURCE / package).rglob("*.py")
    for text in texts_read(ast.parse(path.read_text()), in_config=package == "config")
}


def test_every_setting_is_read() -> None:
    assert unread(TOPIC, READ) == set()
    assert unread(GROUP, READ) == set()
    # A topic or a group falls back to these.
    synonyms = {synonym.name for scope in (TOPIC, GROUP) for setting in scope.settings.values() for synonym in setting.synonyms}
    assert unread(BROKER, READ) - synonyms == set()


def test_a_setting_that_nobody_reads_is_found() -> None:
    assert unread(TOPIC, READ - {"retention.ms"}) == {"retention.ms"}
    assert list(texts_read(ast.parse('Setting("a.b.c", 1)\ndef _check_it(): values["d"]\nvalues["e"]'), in_config=True)) == ["e"]
