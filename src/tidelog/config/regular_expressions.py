"""Regular expressions that come from clients and administrators. RE2 matches in linear time, whatever the expression is."""

from collections.abc import Callable


class InvalidExpression(ValueError):
    """The text is not a valid regular expression; the message says why."""


def full_matcher(expression: str) -> Callable[[str], bool]:
    """Return a function that says whether the whole of a text matches. Raises InvalidExpression."""
    import re2  # The import takes 20 ms, which few brokers need.

    options = re2.Options()
    options.log_errors = False
    try:
        matches = re2.compile(expression, options).fullmatch
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise InvalidExpression(reason) from None
    except UnicodeEncodeError:
        raise InvalidExpression("it is not valid text") from None
    return lambda text: matches(text) is not None
