"""HTML that is safe by construction: text becomes part of a page only through ``element``, which escapes it.

What a page shows (keys, values, messages of exceptions) was written by anybody. ``Html`` is markup that was made here; everything
else is text: what HTML reads as markup is escaped, and what would not be seen, or would turn the line around (control characters,
direction marks, halves of surrogate pairs), is replaced by a sign that is seen.
"""

import unicodedata
from html import escape

Attribute = str | int | float | bool | None

_CUT = "…"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Unicode has pictures of the first 32 control characters, in their order.
_CONTROL_PICTURES = 0x2400
_DELETE, _DELETE_PICTURE = 0x7F, "\N{SYMBOL FOR DELETE}"
_KEPT = frozenset("\n\t")
# Control, format (among them those that turn the direction), surrogate, private, line and paragraph separators.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
_VOID = frozenset(("meta", "br", "rect", "line"))


class Html(str):
    """Markup; made by ``element`` and ``join``, or from a constant of our own."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: Attribute) -> Html:
    """``class_`` and the like lose their last underscore, others become dashes; True is an attribute without a value; None and
    False leave it out. Children that are no ``Html`` are text."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if name in _VOID:
        return Html(f"<{name}{written}>" if name in ("meta", "br") else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child is not None))


def text(content: str) -> Html:
    return Html(escape(visible(content), quote=True))


def visible(content: str) -> str:
    """With a sign in the place of each character that would not be seen. Lines and tabs stay."""
    if content.isprintable():
        return content
    return "".join(
        character if character in _KEPT or unicodedata.category(character) not in _UNSEEN else _sign_of(character)
        for character in content.replace("\r\n", "\n")
    )


def cut(content: str, characters_max: int) -> str:
    return content if len(content) <= characters_max else content[: characters_max - 1] + _CUT


def _attribute(key: str, value: Attribute) -> str:
    name = key.removesuffix("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def _sign_of(character: str) -> str:
    code = ord(character)
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return _DELETE_PICTURE if code == _DELETE else _REPLACEMENT
