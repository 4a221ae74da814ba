"""Answers a request while watching whether its client is still there, within its deadline."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from minigpt.server.api_error import ApiError
from minigpt.server.request_bodies import Body

_LARGEST_BODY = 4_000_000  # bytes
_BODY_SECONDS = 30.0  # until a body must have arrived

ERROR = "minigpt.error"  # the entry of a scope with the error that a request is answered with
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
T = TypeVar("T")
B = TypeVar("B", bound=Body)
Failing = Callable[[ApiError], None]  # is told of the error that ends a stream


async def read_body(request: Request, kind: type[B]) -> B:
    """The body of a request, which must be a JSON object of this kind.

    Raises: ApiError for a body that is too long, too slow, no JSON, or that does not fit; ClientDisconnect.
    """
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 20 or int(length) > _LARGEST_BODY:
        raise _too_long()
    chunks, size = [], 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > _LARGEST_BODY:
                    raise _too_long()
                chunks.append(chunk)
    except TimeoutError as error:
        message = f"the body did not arrive within {_BODY_SECONDS:.0f} s"
        raise ApiError(408, message, headers={"Connection": "close"}) from error
    return kind.parse(b"".join(chunks))


def _too_long() -> ApiError:
    message = f"the body must be at most {_LARGEST_BODY:,} bytes"
    return ApiError(413, message, headers={"Connection": "close"})  # what the client still sends is not read


async def while_connected(request: Request, work: Awaitable[T], seconds: float) -> T:
    """What the work gives. It is cancelled when the client leaves or time is up.

    Raises: ApiError; ClientDisconnect.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise ClientDisconnect
        raise out_of_time(seconds)
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answer_in_pieces(
    pieces: AsyncIterator[Mapping[str, Any]], seconds: float, counted: AbstractContextManager[Failing]
) -> Response:
    """Sends pieces as server-sent events, each when it is there; an error in between is the last piece.

    Starlette cancels the iterator when the client leaves.
    """
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not collect the pieces
    return _EventResponse(_events(pieces, seconds, counted), media_type="text/event-stream", headers=headers)


class _EventResponse(StreamingResponse):
    """A streamed response that closes its iterator at once when the client leaves, wherever it was then."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def _events(
    pieces: AsyncIterator[Mapping[str, Any]], seconds: float, counted: AbstractContextManager[Failing]
) -> AsyncIterator[str]:
    with counted as failing:

        def told(error: ApiError) -> str:
            failing(error)
            return f"data: {_dumps(error.to_dict())}\n\n"

        try:
            async with asyncio.timeout(seconds):
                async for piece in pieces:
                    yield f"data: {_dumps(piece)}\n\n"
        except TimeoutError:
            yield told(out_of_time(seconds))
        except ApiError as error:
            yield told(error)
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        yield "data: [DONE]\n\n"


def out_of_time(seconds: float) -> ApiError:
    """The error for a request that has taken too long."""
    return ApiError(504, f"the request took longer than {seconds:g} s", code="timeout")


def json_response(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer in ASCII, in which control characters and half surrogate pairs are escaped."""
    return Response(_dumps(content), status, headers, media_type="application/json")


def error_response(error: ApiError, scope: MutableMapping[str, Any]) -> Response:
    """The answer that tells a client of an error, which the log finds in the request's `scope`."""
    scope[ERROR] = error
    return json_response(error.to_dict(), error.status, error.headers)


def large_json_response(content: Mapping[str, Any]) -> Response:
    """The same answer for a thread to make: the encoder in C would stop all other threads until its end."""
    text = io.StringIO()
    text.writelines(_ENCODER.iterencode(content))
    return Response(text.getvalue(), media_type="application/json")


def _dumps(content: Mapping[str, Any]) -> str:
    return _ENCODER.encode(content)
