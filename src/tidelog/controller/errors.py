"""The exception that becomes an error of the protocol: a code and the reason, which the client gets as they are."""

from tidelog.wire.errors import ErrorCode


class ApiError(Exception):
    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message if message is not None else code.message)
        self.code = code

    @property
    def message(self) -> str:
        return str(self.args[0])
