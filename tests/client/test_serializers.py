"""What becomes bytes, what stays None, and what is refused with its type and topic."""

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import SerializationError
from tidelog.client.serializers import serialize, serialized

JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, None),
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ("Grüße", "Grüße".encode()),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'.encode()),
        (7, b"7"),
        (False, b"false"),
    ],
)
def test_values_become_bytes(value: Any, data: bytes | None) -> None:
    assert serialize(value, "orders") == data


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    data = serialize(value, "orders")
    assert data is not None
    assert json.loads(data) == value


@pytest.mark.parametrize("value", [object(), date(2026, 1, 1), {1, 2}, float("nan"), {"x": b"bytes"}, "\ud800"])
def test_what_cannot_become_bytes_names_its_type_and_the_topic(value: object) -> None:
    with pytest.raises(SerializationError, match=rf"the value for orders is a .*{type(value).__name__} .*value_serializer"):
        serialized(serialize, value, "orders", "value")


def test_a_serializer_must_make_bytes() -> None:
    with pytest.raises(SerializationError, match="key_serializer made a int of a str for orders"):
        serialized(lambda value, topic: 7, "x", "orders", "key")  # type: ignore[arg-type]  # that is what is tested


def test_an_error_of_a_serializer_is_kept_as_the_cause() -> None:
    def broken(value: Any, topic: str) -> bytes:
        raise KeyError("no schema")

    with pytest.raises(SerializationError, match="no schema") as caught:
        serialized(broken, "x", "orders", "value")
    assert isinstance(caught.value.__cause__, KeyError)
