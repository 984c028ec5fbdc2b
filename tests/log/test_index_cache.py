"""The cache forgets what was unused for longest, and never holds more than it may."""

from hypothesis import given
from hypothesis import strategies as st

from tidelog.log.index_cache import IndexCache


def test_forgets_what_was_unused_for_longest() -> None:
    cache = IndexCache(30)
    for path in ("a", "b", "c"):
        cache.put(path, bytearray(10))
    assert cache.get("a") is not None
    cache.put("d", bytearray(10))
    assert cache.get("b") is None
    assert [path for path in "acd" if cache.get(path) is not None] == ["a", "c", "d"]


def test_appending_to_what_is_held_can_push_out_others_and_itself() -> None:
    cache = IndexCache(10)
    cache.put("a", bytearray(4))
    cache.put("b", bytearray(4))
    cache.extend("b", b"xy")
    assert (cache.get("b"), cache.bytes_held) == (bytearray(b"\0\0\0\0xy"), 10)
    cache.extend("b", b"z")
    assert (cache.get("a"), cache.bytes_held) == (None, 7)
    cache.extend("b", bytes(4))
    assert (cache.get("b"), cache.bytes_held) == (None, 0)


def test_appending_to_what_is_not_held_does_not_hold_it() -> None:
    cache = IndexCache(10)
    cache.extend("a", b"xy")
    assert cache.get("a") is None


def test_content_larger_than_the_cache_pushes_nothing_out() -> None:
    cache = IndexCache(10)
    cache.put("a", bytearray(10))
    cache.put("b", bytearray(11))
    assert cache.get("a") is not None
    assert cache.get("b") is None


operations = st.lists(
    st.tuples(st.sampled_from(["put", "get", "extend", "discard"]), st.sampled_from("abcd"), st.integers(0, 12))
)


@given(operations)
def test_bytes_held_are_counted_and_bounded(steps: list[tuple[str, str, int]]) -> None:
    cache = IndexCache(20)
    contents: dict[str, bytes] = {}
    for operation, path, length in steps:
        if operation == "put":
            contents[path] = b"p" * length
            cache.put(path, bytearray(contents[path]))
        elif operation == "extend":
            contents[path] = contents.get(path, b"") + b"e" * length
            cache.extend(path, b"e" * length)
        elif operation == "discard":
            contents.pop(path, None)
            cache.discard(path)
        held = {name: content for name in "abcd" if (content := cache.get(name)) is not None}
        assert cache.bytes_held == sum(map(len, held.values())) <= 20
        assert all(contents[name] == content for name, content in held.items())
