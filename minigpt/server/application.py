"""The ASGI application: routes, errors, and what every request passes."""

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from minigpt import __version__
from minigpt.errors import TokenizerError
from minigpt.server.answering import answer_in_pieces, json_response, read_body, while_connected
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.chat import chat_options
from minigpt.server.completion_options import completion_options
from minigpt.server.completions import Completion, complete, stream
from minigpt.server.event_hub import EventHub
from minigpt.server.front_page import front_page, page_response
from minigpt.server.guards import Guards, counting
from minigpt.server.model_views import inspection, report
from minigpt.server.request_bodies import ChatBody, CompletionBody, DetokenizeBody, InspectBody, TokenizeBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models, ServedModel
from minigpt.server.side_work import Turns
from minigpt.server.template_process import TemplateProcess
from minigpt.server.tokenization import detokenize, tokenize, tokenizer_info

Log = Callable[[str], None]
T = TypeVar("T")


class Endpoints:
    """What the server answers at each path."""

    def __init__(self, models: Models, config: ServeConfig, log: Log) -> None:
        self.models, self.config, self.log = models, config, log
        self.hub = EventHub(config, models)
        self.metrics = self.hub.metrics
        self._most = config.max_batch + config.max_queue
        self._tokenizing = Turns("a tokenizer", self._most)
        self._viewing = Turns("inspections and reports", 8)
        self._templates: dict[ServedModel, TemplateProcess] = {}

    async def stop(self) -> None:
        """Ends the processes and the thread beside this one."""
        for template in self._templates.values():
            await template.stop()
        await self.hub.stop()

    async def _answered(self, request: Request, answer: Awaitable[T]) -> T:
        try:
            return await while_connected(request, answer, self.config.timeout)
        except ClientDisconnect:
            self.metrics.cut_off.inc()
            raise

    # Generation

    async def completions(self, request: Request) -> Response:
        """Continues or scores prompts."""
        body = await read_body(request, CompletionBody)
        model = self.models.get(body.model)
        completion = await asyncio.to_thread(lambda: Completion(completion_options(body, model, self.config)))
        return await self._generated(request, completion, body.prompt)

    async def chat_completions(self, request: Request) -> Response:
        """Answers in a conversation."""
        body = await read_body(request, ChatBody)
        model = self.models.get(body.model)
        if model not in self._templates:
            template = TemplateProcess(
                model.name, model.chat_template or "", seconds=self.config.timeout, most=self._most
            )
            self._templates[model] = template
        asked = chat_options(body, model, self.config, self._templates[model].render)
        completion = await asyncio.to_thread(Completion, await self._answered(request, asked))
        return await self._generated(request, completion, [message.model_dump() for message in body.messages])

    async def _generated(self, request: Request, completion: Completion, prompt: object) -> Response:
        self.hub.check_accepts(completion.n_texts)
        counted = self._counted(request.url.path, completion, prompt)
        if completion.body.stream:
            return answer_in_pieces(stream(completion, self.hub), self.config.timeout, counted)
        with counted:
            return await self._answered(request, complete(completion, self.hub))

    @contextmanager
    def _counted(self, path: str, completion: Completion, prompt: object) -> Iterator[None]:
        """Counts and logs when a request has ended."""
        end = ""
        try:
            yield
        except ClientDisconnect:
            end = ", the client left"
            raise
        except (asyncio.CancelledError, GeneratorExit):  # of a stream
            end = ", the client left"
            self.metrics.cut_off.inc()
            raise
        finally:
            self.metrics.prompt_tokens.inc(completion.n_prompt_tokens)
            self.metrics.generated_tokens.inc(completion.n_generated)
            self.log(f"{path} {completion.n_prompt_tokens} + {completion.n_generated} tokens{end}")
            if self.config.log_prompts:
                self.log(f"prompt: {prompt!r}")

    # Models and tokenizers

    async def list_models(self, _: Request) -> Response:
        """The served models."""
        self.models.get(None)
        return json_response({"object": "list", "data": [model.to_dict() for model in self.models.all]})

    async def one_model(self, request: Request) -> Response:
        """One model."""
        return json_response(self.models.get(request.path_params["model"]).to_dict())

    async def tokenize(self, request: Request) -> Response:
        """Text to ids."""
        body = await read_body(request, TokenizeBody)
        model = self.models.get(body.model)
        answer = self._tokenizing.run(lambda _: json_response(tokenize(body, model, self.config)))
        return await self._answered(request, answer)

    async def detokenize(self, request: Request) -> Response:
        """Ids to text."""
        body = await read_body(request, DetokenizeBody)
        model = self.models.get(body.model)
        answer = self._tokenizing.run(lambda _: json_response(detokenize(body, model, self.config)))
        return await self._answered(request, answer)

    async def tokenizer_info(self, request: Request) -> Response:
        """The special tokens and the size of the vocabulary."""
        return json_response(tokenizer_info(self.models.get(request.query_params.get("model"))))

    # Looking at a model

    async def inspect(self, request: Request) -> Response:
        """Attention weights, logit lens and norms of a text."""
        body = await read_body(request, InspectBody)
        model = self.models.get(body.model)
        answer = self._viewing.run(lambda check: json_response(inspection(body, model, check)))
        return await self._answered(request, answer)

    async def report(self, request: Request) -> Response:
        """The report of the run that trained a model, as a page."""
        model = self.models.get(request.query_params.get("model"))
        return await self._answered(request, self._viewing.run(lambda _: page_response(report(model))))

    # The server itself

    async def health(self, _: Request) -> Response:
        """Whether the models are loaded."""
        self.models.get(None)
        return json_response({"status": "ok"})

    async def prometheus(self, _: Request) -> Response:
        """Counters and durations."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, _: Request) -> Response:
        """The OpenAPI file."""
        from minigpt.server.openapi import openapi  # which builds the types of all answers

        return json_response(openapi(__version__))

    async def front_page(self, _: Request) -> Response:
        """The page for people."""
        return front_page()


def build_application(models: Models, config: ServeConfig, log: Log) -> Starlette:
    """The application; `models` are loaded by the caller, `log` gets one line for each request that generates."""
    endpoints = Endpoints(models, config, log)
    routes = [
        Route("/", endpoints.front_page, methods=["GET"]),
        Route("/v1/completions", endpoints.completions, methods=["POST"]),
        Route("/v1/chat/completions", endpoints.chat_completions, methods=["POST"]),
        Route("/v1/models", endpoints.list_models, methods=["GET"]),
        Route("/v1/models/{model:path}", endpoints.one_model, methods=["GET"]),
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/tokenizer_info", endpoints.tokenizer_info, methods=["GET"]),
        Route("/inspect", endpoints.inspect, methods=["POST"]),
        Route("/report", endpoints.report, methods=["GET"]),
        Route("/health", endpoints.health, methods=["GET"]),
        Route("/metrics", endpoints.prometheus, methods=["GET"]),
        Route("/openapi.json", endpoints.openapi, methods=["GET"]),
    ]
    paths = frozenset(route.path for route in routes if "{" not in route.path)
    middleware = []
    if config.cors:  # before the guards, so that an allowed page can read why it is refused
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(config.cors),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],  # OpenAI's client for JavaScript sends x-stainless-*
            )
        )
    middleware.append(Middleware(Guards, config=config))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        endpoints.hub.start()
        try:
            yield
        finally:
            await endpoints.stop()

    application = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            ApiError: _api_error,
            TokenizerError: _text_error,
            HTTPException: _http_error,
            ClientDisconnect: lambda *_: Response(status_code=499),  # which nobody reads
            Exception: _bug,
        },
    )
    application.router.redirect_slashes = False
    application.middleware_stack = counting(application.build_middleware_stack(), endpoints.metrics.responses, paths)
    application.state.hub = endpoints.hub
    return application


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return json_response(error.to_dict(), error.status, error.headers)


async def _text_error(_: Request, error: Exception) -> Response:
    """A text of the request that the model's tokenizer cannot encode."""
    found = invalid(str(error))
    return json_response(found.to_dict(), found.status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"this path does not have the method {request.method[:20]}"
    else:
        message = "there is nothing at this path; /openapi.json lists what there is"
    found = ApiError(error.status_code, message, headers=error.headers)
    return json_response(found.to_dict(), found.status, found.headers)


async def _bug(_: Request, error: Exception) -> Response:
    """The answer shows nothing of the error; the terminal does."""
    traceback.print_exception(error, file=sys.stderr)
    found = ApiError(500, "the server failed; its terminal shows the cause", code="internal_error")
    return json_response(found.to_dict(), found.status)
