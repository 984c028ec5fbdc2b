"""What a command gives up with, beside the errors of the layers below. The message is the one line that the user sees."""


class CommandFailed(Exception):
    """The command could not do what was asked: no broker there, a request refused, input that makes no sense."""
