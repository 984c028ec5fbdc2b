"""A refusal that a client gets as it is: a code of the protocol and the reason in words."""

from tidelog.wire.errors import ErrorCode


class ApiError(Exception):
    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message if message is not None else code.message)
        self.code = code

    @property
    def message(self) -> str:
        return str(self.args[0])
