"""The error that ends a command, besides those of the layers below. Its message is the one line that the user sees."""


class CommandFailed(Exception):
    """The command could not do what was asked: no broker answers, a request was refused, or the input makes no sense."""
