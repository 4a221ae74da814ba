"""Decides which requests are answered: by their Host and Origin headers and by their key."""

import contextlib
import hmac
import ipaddress
from collections.abc import Callable, Mapping

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minigpt.server.answering import ERROR, error_response
from minigpt.server.api_error import ApiError
from minigpt.server.serve_config import ServeConfig, host_name

WITHOUT_KEY = frozenset({"/", "/health", "/openapi.json"})  # paths that tell nothing about models or texts
_LOGGED_PATH = 80  # characters of a path
_EVERY_ADDRESS = {"0.0.0.0", "::"}


class Guards:
    """ASGI middleware that refuses requests before an endpoint sees them.

    - Host: a web page can give its own name this machine's address (DNS rebinding), and then read what a local server
      answers. Its requests have the page's name in the Host header, which must therefore be one of this server's.
    - Origin: a web page can also send requests whose answers it cannot read, only to make the server work. For images
      and the like browsers send no Origin, but say that another site made them send it. Only a link to `/` may.
    - Key: compared in constant time.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self.app, self.config = app, config
        self._hosts = {"localhost", "127.0.0.1", "::1", *map(host_name, (config.host, *config.allowed_hosts))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                error.headers["Connection"] = "close"
                await error_response(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host_name(host)
        if not self._is_known(name):
            advice = f"start it with --allowed-hosts {name[:80]!a} to add it" if name else "send a name and a port"
            raise ApiError(
                403, f"the Host header ({host[:80]!a}) names no host of this server; {advice}", code="unknown_host"
            )
        origin = headers.get("origin")
        allowed = {f"http://{host}", f"https://{host}", *self.config.cors}
        if "*" not in allowed and (origin not in allowed if origin else _is_cross_site(scope["path"], headers)):
            pages = f"web pages of {origin[:80]!a}" if origin else "web pages of another site"
            raise ApiError(
                403, f"{pages} may not use this server; start it with --cors to allow them", code="unknown_origin"
            )
        if self.config.api_key and scope["path"] not in WITHOUT_KEY and scope["method"] != "OPTIONS":
            self._check_key(headers)

    def _is_known(self, name: str) -> bool:
        """Whether a name is this server's. One that listens on every address has any number of them, but a web page
        cannot make a browser send an address in place of the page's name.
        """
        if name in self._hosts:
            return bool(name)
        with contextlib.suppress(ValueError):
            return self.config.host in _EVERY_ADDRESS and bool(ipaddress.ip_address(name))
        return False

    def _check_key(self, headers: Mapping[str, str]) -> None:
        kind, _, key = headers.get("authorization", "").partition(" ")
        given, expected = key.strip().encode("latin-1", "replace"), self.config.api_key.encode()
        if kind.lower() != "bearer" or not hmac.compare_digest(given, expected):
            raise ApiError(
                401, "a valid key is missing: send the header Authorization: Bearer KEY", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip


def _is_cross_site(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser says that another site made it send the request, other than by a link to the page."""
    is_link = path == "/" and headers.get("sec-fetch-dest") == "document"
    return headers.get("sec-fetch-site") == "cross-site" and not is_link


def counting(
    app: ASGIApp, responses: Counter, paths: frozenset[str], log: Callable[[str], None], *, shows_texts: bool
) -> ASGIApp:
    """The application that counts its responses by path and status, and logs those that are errors.

    Unknown paths count together. With `shows_texts` the log may quote what clients write.
    """

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                responses.labels(scope["path"] if scope["path"] in paths else "other", message["status"]).inc()
                error = scope.get(ERROR)
                if error is not None and scope["path"] != "/health":  # which programs ask often while models load
                    log(f"{scope['path'][:_LOGGED_PATH]} {error.status}: {error.logged(shows_texts=shows_texts)}")
            await send(message)

        await app(scope, receive, count)

    return counted
