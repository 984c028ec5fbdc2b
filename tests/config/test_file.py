"""A TOML file becomes settings by name, in quotes or in tables."""

import pytest

from tidelog.config.file import UnreadableFile, read_toml, text_of
from tidelog.config.types import InvalidSetting

DOCUMENT = """
"log.retention.ms" = 1000
"log.cleaner.min.cleanable.ratio" = 0.25
listeners = ["PLAINTEXT://127.0.0.1:1", "x"]

[log.segment]
bytes = 16777216

[auto.create.topics]
enable = false
"""


def test_quoted_names_and_tables() -> None:
    assert read_toml(DOCUMENT, "tidelog.toml") == {
        "log.retention.ms": "1000",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "listeners": "PLAINTEXT://127.0.0.1:1,x",
        "log.segment.bytes": "16777216",
        "auto.create.topics.enable": "false",
    }


def test_a_file_that_is_no_toml_is_named_with_the_line() -> None:
    with pytest.raises(UnreadableFile, match=r"^tidelog\.toml is not valid TOML: .*line 2"):
        read_toml("a = 1\nb = = 2\n", "tidelog.toml")


def test_the_same_name_twice() -> None:
    with pytest.raises(InvalidSetting, match=r"^log\.retention\.ms: tidelog\.toml sets it twice"):
        read_toml('"log.retention.ms" = 1\n[log.retention]\nms = 2\n', "tidelog.toml")


@pytest.mark.parametrize("value", [{"a": 1}, [["a"]], None])
def test_values_that_no_setting_has(value: object) -> None:
    with pytest.raises(InvalidSetting, match=r"^name: expected a string, a number"):
        text_of("name", value)


def test_a_boolean_is_kafkas() -> None:
    assert text_of("name", True) == "true"
    assert text_of("name", [1, "a", False]) == "1,a,false"
