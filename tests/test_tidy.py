"""Keeps the tree tidy: what a reviewer would otherwise have to say twice.

Each rule is a function from one ``Source`` to the places that break it, and stands in ``RULES``. Two tests per rule: the tree has
no such place, and a planted one is found (a rule that finds nothing proves nothing). Rules about the tree as a whole come last.
Words and paths that the rules look for are put together here from parts, so that this file does not find itself.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE_DIRECTORIES = ("src", "simulation", "bench", "examples", "demo", "tests")
OTHER_FILES = ("*.md", "*.toml", "*.txt", "Makefile", ".ci/run", "docs/**/*.md")

FUNCTION_LINES_MAX = 70

# Test directories that mirror no package: real clients and foreign programs, crashes and hostile peers, the simulated ports,
# planted bugs, stored bytes, runnable examples, pages whose commands are run, the demo.
TEST_DIRECTORIES_OF_THEIR_OWN = {
    "portability",
    "release",
    "docs",
    "bench",
    "compatibility",
    "demo",
    "examples",
    "faults",
    "simulation",
    "mutants",
    "fixtures",
    "data",
}

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PURE_PACKAGES: list[str] = PROJECT["tool"]["tidelog"]["pure_packages"]
IMPURE_MODULES: list[str] = PROJECT["tool"]["tidelog"]["impure_modules"]

WALL_CLOCK_CALLS = ("now", "utcnow", "today")
UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
SUPPRESSION = re.compile(r"#\s*(?:type:\s*ignore(?:\[[^\]]*\])?|noqa(?::\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?)(?P<rest>.*)")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me")) + ")/")
REGISTRY_HOSTS = (
    ("py", "pi.org"),
    ("python", "hosted.org"),
    ("maven", ".org"),
    ("maven.", "apache.org"),
    ("docker", ".io"),
    ("ghcr", ".io"),
    ("quay", ".io"),
    ("npm", "js.org"),
)
REGISTRY_HOST = re.compile("|".join(re.escape("".join(parts)) for parts in REGISTRY_HOSTS))


@dataclass(frozen=True)
class Source:
    """One file, by its path from the root with forward slashes."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text if self.is_python else "", self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def package(self) -> str | None:
        """The package of tidelog it is in, None outside of src or at its top."""
        parts = self.path.split("/")
        return parts[2] if parts[:2] == ["src", "tidelog"] and len(parts) > 3 else None


# Line and message.
Place = tuple[int, str]
Rule = Callable[[Source], Iterator[Place]]


def functions_fit_a_screen(source: Source) -> Iterator[Place]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {length} lines, at most {FUNCTION_LINES_MAX}"


def pure_packages_import_nothing_impure(source: Source) -> Iterator[Place]:
    if source.package not in PURE_PACKAGES:
        return
    for node in source.nodes:
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        for module in modules:
            if module.split(".")[0] in IMPURE_MODULES:
                yield line_of(node), f"{source.package} is pure and imports {module}: have it handed in (ports)"


def pure_packages_do_not_look_at_the_wall_clock_or_the_disk(source: Source) -> Iterator[Place]:
    if source.package not in PURE_PACKAGES:
        return
    for call in source.calls:
        function = call.func
        is_of_date = isinstance(function, ast.Attribute) and last_name(function.value) in ("datetime", "date")
        if is_of_date and last_name(function) in WALL_CLOCK_CALLS:
            yield call.lineno, f"{source.package} is pure and asks the wall clock: have a Clock handed in"
        if isinstance(function, ast.Name) and function.id in ("open", "input"):
            yield call.lineno, f"{source.package} is pure and calls {function.id}(): have a Disk handed in"


def nothing_is_left_unfinished(source: Source) -> Iterator[Place]:
    for number, line in enumerate(source.lines, 1):
        if found := UNFINISHED.search(line):
            yield number, f"{found[0]}: finish it, or write it down where work is planned"


def skips_say_why(source: Source) -> Iterator[Place]:
    """A call pytest.skip("why") or pytest.xfail("why"); a mark, or importorskip, with reason="why"."""
    call_by_function = {id(call.func): call for call in source.calls}
    for node in source.nodes:
        if not isinstance(node, ast.Attribute) or node.attr not in ("skip", "skipif", "xfail", "importorskip"):
            continue
        owner = last_name(node.value)
        if owner not in ("pytest", "mark"):
            continue
        call = call_by_function.get(id(node))
        words = [keyword.value for keyword in call.keywords if keyword.arg == "reason"] if call else []
        if call and owner == "pytest" and node.attr != "importorskip":
            words += call.args
        if all(isinstance(word, ast.Constant) and not word.value for word in words):
            yield node.lineno, f"{node.attr} without a reason"


def suppressions_say_why(source: Source) -> Iterator[Place]:
    for number, line in enumerate(source.lines, 1):
        found = SUPPRESSION.search(line) if source.is_python else None
        if found and not re.search(r"[A-Za-z]{3}", found["rest"]):
            yield number, "a suppressed check without a reason on the same line"


def no_machine_path(source: Source) -> Iterator[Place]:
    for number, line in enumerate(source.lines, 1):
        if found := MACHINE_PATH.search(line):
            yield number, f"a path of somebody's machine: {found[0]}"


def no_registry_host(source: Source) -> Iterator[Place]:
    for number, line in enumerate(source.lines, 1):
        if found := REGISTRY_HOST.search(line):
            yield number, f"a registry's address ({found[0]}): leave it to the installer's own settings"


def modules_open_with_a_docstring(source: Source) -> Iterator[Place]:
    if source.path.startswith("src/") and source.is_python and not ast.get_docstring(source.tree):
        yield 1, "the module has no docstring: open with its strategy"


def only_the_command_line_prints(source: Source) -> Iterator[Place]:
    if not source.path.startswith("src/") or source.package == "cli":
        return
    for call in source.calls:
        if isinstance(call.func, ast.Name) and call.func.id == "print":
            yield call.lineno, "print outside of cli/"


RULES: tuple[Rule, ...] = (
    functions_fit_a_screen,
    pure_packages_import_nothing_impure,
    pure_packages_do_not_look_at_the_wall_clock_or_the_disk,
    nothing_is_left_unfinished,
    skips_say_why,
    suppressions_say_why,
    no_machine_path,
    no_registry_host,
    modules_open_with_a_docstring,
    only_the_command_line_prints,
)


def last_name(node: ast.AST) -> str:
    """``mark`` of ``pytest.mark``, ``pytest`` of ``pytest``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def line_of(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1))


def read_tree() -> list[Source]:
    paths = {path for directory in CODE_DIRECTORIES for path in (ROOT / directory).rglob("*.py")}
    paths |= {path for pattern in OTHER_FILES for path in ROOT.glob(pattern)}
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted(paths)]


TREE = read_tree()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    places = [f"{source.path}:{line}: {message}" for source in TREE for line, message in rule(source)]
    assert not places, "\n" + "\n".join(places)


def test_the_tree_is_read() -> None:
    paths = {source.path for source in TREE}
    assert {"Makefile", ".ci/run", "README.md", "pyproject.toml", "src/tidelog/__init__.py", "tests/test_tidy.py"} <= paths


PURE_FILE = "src/tidelog/log/planted.py"
TEST_FILE = "tests/log/test_planted.py"

PLANTED: list[tuple[Rule, str, str, int]] = [
    (functions_fit_a_screen, PURE_FILE, "\ndef long():\n" + "    pass\n" * 70, 2),
    (functions_fit_a_screen, PURE_FILE, "class C:\n    async def long():\n" + "        pass\n" * 70, 2),
    (pure_packages_import_nothing_impure, PURE_FILE, "import struct\nimport os\n", 2),
    (pure_packages_import_nothing_impure, PURE_FILE, "import struct, os.path\n", 1),
    (pure_packages_import_nothing_impure, PURE_FILE, "from os import path\n", 1),
    (pure_packages_import_nothing_impure, PURE_FILE, "def late():\n    from time import time\n", 2),
    (pure_packages_import_nothing_impure, "src/tidelog/broker/handlers/produce.py", "import asyncio\n", 1),
    (pure_packages_do_not_look_at_the_wall_clock_or_the_disk, PURE_FILE, "x = datetime.now()\n", 1),
    (pure_packages_do_not_look_at_the_wall_clock_or_the_disk, PURE_FILE, "x = datetime.datetime.utcnow()\n", 1),
    (pure_packages_do_not_look_at_the_wall_clock_or_the_disk, PURE_FILE, "x = datetime.date.today()\n", 1),
    (pure_packages_do_not_look_at_the_wall_clock_or_the_disk, PURE_FILE, "x = open('x')\n", 1),
    (nothing_is_left_unfinished, "docs/planted.md", "fine\nTO" + "DO: more\n", 2),
    (nothing_is_left_unfinished, PURE_FILE, "x = 1  # FIX" + "ME\n", 1),
    (skips_say_why, TEST_FILE, "@pytest.mark.skip\ndef test_it(): ...\n", 1),
    (skips_say_why, TEST_FILE, "@pytest.mark.skipif(True)\ndef test_it(): ...\n", 1),
    (skips_say_why, TEST_FILE, "@pytest.mark.xfail(reason='')\ndef test_it(): ...\n", 1),
    (skips_say_why, TEST_FILE, "pytest.skip()\n", 1),
    (skips_say_why, TEST_FILE, "pytest.importorskip('kafka')\n", 1),
    (suppressions_say_why, PURE_FILE, "x = 1  # type" + ": ignore\n", 1),
    (suppressions_say_why, PURE_FILE, "x = 1  # type" + ": ignore[attr-defined]\n", 1),
    (suppressions_say_why, PURE_FILE, "x = 1  # no" + "qa: S101, E501\n", 1),
    (no_machine_path, "Makefile", "run:\n\t/wo" + "rk/main/run\n", 2),
    (no_machine_path, PURE_FILE, "x = '/ho" + "me/me/data'\n", 1),
    (no_registry_host, "constraints.txt", "--index-url https://py" + "pi.org/simple\n", 1),
    (modules_open_with_a_docstring, PURE_FILE, "x = 1\n", 1),
    (only_the_command_line_prints, PURE_FILE, "def f():\n    print(1)\n", 2),
    (only_the_command_line_prints, "src/tidelog/planted.py", "print(1)\n", 1),
]

FINE: list[tuple[Rule, str, str]] = [
    (functions_fit_a_screen, PURE_FILE, "def long():\n" + "    pass\n" * 69),
    (
        pure_packages_import_nothing_impure,
        PURE_FILE,
        "import struct\nfrom .time import x\nfrom tidelog.ports.clock import Clock\n",
    ),
    (pure_packages_import_nothing_impure, "src/tidelog/ports/real_disk.py", "import os\n"),
    (pure_packages_do_not_look_at_the_wall_clock_or_the_disk, PURE_FILE, "x = clock.now()\ny = disk.open('x', 'read')\n"),
    (skips_say_why, TEST_FILE, "pytest.skip('no disk')\n@pytest.mark.skipif(True, reason='no disk')\ndef f(): ...\n"),
    (skips_say_why, TEST_FILE, "pytest.skip(f'{error}')\nreader.skip()\n"),
    (suppressions_say_why, PURE_FILE, "x = 1  # type" + ": ignore[attr-defined]  # the stub lacks it\n"),
    (suppressions_say_why, PURE_FILE, "x = 1  # no" + "qa: S311 - not for secrets\n"),
    (no_machine_path, PURE_FILE, "x = 'net/wo" + "rk/x'\n"),
    (modules_open_with_a_docstring, PURE_FILE, '"""What it keeps."""\n'),
    (only_the_command_line_prints, "src/tidelog/cli/log.py", "print(1)\n"),
]


@pytest.mark.parametrize(("rule", "path", "text", "line"), PLANTED)
def test_a_planted_violation_is_found(rule: Rule, path: str, text: str, line: int) -> None:
    assert [place for place, _ in rule(Source(path, text))] == [line]


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _, _ in PLANTED} == set(RULES)


@pytest.mark.parametrize(("rule", "path", "text"), FINE)
def test_what_is_fine_is_not_found(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def classes_defined_twice(sources: list[Source]) -> list[str]:
    """Public classes of ``src`` that share a name: a reader who searches for one would find the other."""
    paths_by_name: dict[str, list[str]] = {}
    for source in sources:
        if source.path.startswith("src/"):
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    paths_by_name.setdefault(node.name, []).append(source.path)
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(paths_by_name.items()) if len(paths) > 1]


def test_a_public_class_name_stands_for_one_class() -> None:
    doubles = classes_defined_twice(TREE)
    assert not doubles, "\n" + "\n".join(doubles)


def test_a_class_that_is_defined_twice_is_found() -> None:
    one, other = Source("src/tidelog/a.py", "class Log: ...\n"), Source("src/tidelog/b.py", "class Log: ...\nclass _Own: ...\n")
    private = Source("src/tidelog/c.py", "class _Own: ...\nclass Other: ...\n")
    assert classes_defined_twice([one, other, private]) == ["Log: src/tidelog/a.py, src/tidelog/b.py"]


def fields_of_classes(source: Source) -> set[str]:
    """The names of all fields that classes of this module have: annotated, in ``__slots__``, or assigned to ``self``."""
    fields = set()
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    fields.add(statement.target.id)
                elif isinstance(statement, ast.Assign) and [last_name(target) for target in statement.targets] == ["__slots__"]:
                    fields |= set(ast.literal_eval(statement.value))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and last_name(node.value) == "self":
            fields.add(node.attr)
    return fields


def fields_assigned_by_others(sources: list[Source]) -> list[str]:
    """Assignments to a field that only classes of other modules have. State has one owner; others call its methods.

    Counting (``server.requests += 1``) is allowed: a counter holds no invariant, and a method call would cost more than the sum.
    """
    sources = [source for source in sources if source.path.startswith("src/")]
    fields_by_path = {source.path: fields_of_classes(source) for source in sources}
    all_fields = set().union(*fields_by_path.values())
    found = []
    for source in sources:
        foreign = all_fields - fields_by_path[source.path]
        counted = {id(node.target) for node in source.nodes if isinstance(node, ast.AugAssign)}
        found += [
            f"{source.path}:{node.lineno}: {ast.unparse(node)} is assigned outside of the module that owns it"
            for node in source.nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and last_name(node.value) not in ("self", "cls")
            and node.attr in foreign
            and id(node) not in counted
        ]
    return found


def test_a_field_is_assigned_by_its_owner_only() -> None:
    places = fields_assigned_by_others(TREE)
    assert not places, "\n" + "\n".join(places)


def test_a_field_that_another_module_assigns_is_found() -> None:
    owner = Source(
        "src/tidelog/a.py", "class Log:\n    __slots__ = ('end',)\n    count: int\n    def cut(self):\n        self.start = 0\n"
    )
    cut = "def cut(log):\n    log.{} = 1\n"
    for field in ("end", "count", "start"):
        assert len(fields_assigned_by_others([owner, Source("src/tidelog/b.py", cut.format(field))])) == 1
    fine = Source("src/tidelog/b.py", "def count(log, other):\n    log.count += 1\n    other.timeout = 3\n")
    assert fields_assigned_by_others([owner, fine]) == []


def untested_packages(packages: set[str], test_directories: set[str]) -> list[str]:
    return sorted(packages - test_directories)


def stray_test_directories(packages: set[str], test_directories: set[str]) -> list[str]:
    return sorted(
        directory
        for directory in test_directories
        if directory not in packages and not TEST_DIRECTORIES_OF_THEIR_OWN & set(directory.split("/"))
    )


def directories_with_code(root: Path) -> set[str]:
    """Directories under ``root`` that hold more than an ``__init__.py``, as paths from it."""
    files = [path for path in root.rglob("*.py") if path.name != "__init__.py" and path.parent != root]
    return {path.parent.relative_to(root).as_posix() for path in files}


def test_tests_mirror_the_packages() -> None:
    packages = directories_with_code(ROOT / "src" / "tidelog")
    test_directories = directories_with_code(ROOT / "tests")
    assert untested_packages(packages, test_directories) == []
    assert stray_test_directories(packages, test_directories) == []


def test_a_package_without_tests_and_tests_without_a_package_are_found() -> None:
    assert untested_packages({"log", "raft"}, {"log"}) == ["raft"]
    assert stray_test_directories({"log"}, {"log", "misc", "compatibility", "log/data"}) == ["misc"]


def test_the_pure_packages_contract_is_the_one_list() -> None:
    contracts = {contract["name"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
    contract = contracts["Pure packages"]
    existing = [
        f"tidelog.{package}" for package in PURE_PACKAGES if (ROOT / "src" / "tidelog" / package / "__init__.py").is_file()
    ]
    assert contract["source_modules"] == existing
    assert contract["forbidden_modules"] == IMPURE_MODULES


def unpinned(requirements: list[str], constraints: list[str]) -> list[str]:
    pinned = {line.split("==")[0] for line in constraints}
    names = [re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0] for requirement in requirements]
    return [name for name in names if name.lower().replace("_", "-") not in pinned]


def test_constraints_hold_names_and_versions_only_and_pin_every_requirement() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in constraints if not re.fullmatch(r"[a-z0-9-]+==[a-z0-9.]+", line)] == []
    extras = PROJECT["project"]["optional-dependencies"].values()
    requirements = [*PROJECT["project"]["dependencies"], *(requirement for extra in extras for requirement in extra)]
    assert unpinned([*requirements, *PROJECT["build-system"]["requires"]], constraints) == []
    assert unpinned(["nothing_here>=1"], constraints) == ["nothing_here"]
