"""Errors in the form that OpenAI's clients read."""

import re
from collections.abc import Mapping
from typing import Any

_TEXTS = {"prompt", "messages", "text", "stop", "bad_words", "suffix", "tokens"}  # fields of what clients write


class ApiError(Exception):
    """An error that a client is told: an HTTP status, one sentence, and which field it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """OpenAI's name for the kind of error."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        return "server_error" if self.status >= 500 else kinds.get(self.status, "invalid_request_error")

    def logged(self, *, shows_texts: bool) -> str:
        """The sentence for the server's log; without `shows_texts`, one that quotes nothing of what a client writes."""
        if shows_texts or self.status != 400 or (self.param and re.split(r"[.[]", self.param)[0] not in _TEXTS):
            return self.message
        return f"{self.param or 'the body'} is not valid; --log-prompts shows why"

    def to_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The error for a request that says something wrong."""
    return ApiError(400, message, param=param, code=code)
