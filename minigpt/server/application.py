"""The ASGI application: routes, errors, and what every request passes."""

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from minigpt import __version__
from minigpt.errors import TokenizerError
from minigpt.server.answering import answer_in_pieces, answer_once, json_response, read_body, while_connected
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.chat import chat_answer, chat_options, chat_pieces
from minigpt.server.completion_options import completion_options
from minigpt.server.completions import Completion, complete, stream
from minigpt.server.event_hub import EventHub
from minigpt.server.front_page import front_page, page_response
from minigpt.server.guards import Guards, ResponseCounter
from minigpt.server.metrics import Metrics
from minigpt.server.model_views import inspection, report
from minigpt.server.openapi import openapi
from minigpt.server.request_schemas import CHAT_COMPLETION, COMPLETION, DETOKENIZE, INSPECT, TOKENIZE
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models, ServedModel
from minigpt.server.side_work import Pool, SideWork
from minigpt.server.tokenization import detokenize, tokenize, tokenizer_info

Log = Callable[[str], None]


class Endpoints:
    """What the server answers at each path."""

    def __init__(self, models: Models, config: ServeConfig, log: Log) -> None:
        self.models, self.config, self.log = models, config, log
        self.metrics = Metrics()
        self.hub = EventHub(config, self.metrics)
        self.side_work = SideWork()
        self._most = config.max_batch + config.max_queue
        self._tokenizing = Pool("a tokenizer", self._most)
        self._rendering: dict[ServedModel, Pool] = {}  # a template is a program, which may take long

    def stop(self) -> None:
        """Ends the work beside generation."""
        self.side_work.stop()
        for pool in (self._tokenizing, *self._rendering.values()):
            pool.stop()

    # Generation

    async def completions(self, request: Request) -> Response:
        """Continues or scores prompts."""
        body = await read_body(request, COMPLETION)
        model = self.models.get(body.get("model"))
        completion = await asyncio.to_thread(lambda: Completion(completion_options(body, model, self.config)))
        self.hub.check_accepts(completion.n_texts)
        finish = self._finish(request, completion, body.get("prompt"))
        if completion.options.stream:
            return answer_in_pieces(stream(completion, self.hub), self.config.timeout, finish)
        return await answer_once(request, complete(completion, self.hub), self.config.timeout, finish)

    async def chat_completions(self, request: Request) -> Response:
        """Answers in a conversation."""
        body = await read_body(request, CHAT_COMPLETION)
        model = self.models.get(body.get("model"))
        render = self._rendering.setdefault(model, Pool(f"the chat template of {model.name}", self._most))
        rendered = render.run(lambda: Completion(chat_options(body, model, self.config)))
        completion = await while_connected(request, rendered, self.config.timeout)
        self.hub.check_accepts(completion.n_texts)
        finish = self._finish(request, completion, body["messages"])
        if completion.options.stream:
            return answer_in_pieces(chat_pieces(stream(completion, self.hub), model), self.config.timeout, finish)
        answer = complete(completion, self.hub, lambda whole: chat_answer(whole, model))
        return await answer_once(request, answer, self.config.timeout, finish)

    def _finish(self, request: Request, completion: Completion, prompt: object) -> Callable[[bool], None]:
        """What is counted and logged when a request ends."""
        path = request.url.path

        def finish(cut_off: bool) -> None:
            self.metrics.prompt_tokens += completion.n_prompt_tokens
            self.metrics.generated_tokens += completion.n_generated
            self.metrics.cut_off += cut_off
            end = ", the client left" if cut_off else ""
            self.log(f"{path} {completion.n_prompt_tokens} + {completion.n_generated} tokens{end}")
            if self.config.log_prompts:
                self.log(f"prompt: {prompt!r}")

        return finish

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
        body = await read_body(request, TOKENIZE)
        model = self.models.get(body.get("model"))
        return await self._tokenized(request, lambda: tokenize(body, model, self.config))

    async def detokenize(self, request: Request) -> Response:
        """Ids to text."""
        body = await read_body(request, DETOKENIZE)
        model = self.models.get(body.get("model"))
        return await self._tokenized(request, lambda: detokenize(body, model, self.config))

    async def _tokenized(self, request: Request, work: Callable[[], Mapping[str, Any]]) -> Response:
        answer = self._tokenizing.run(lambda: json_response(work()))
        return await answer_once(request, answer, self.config.timeout, self._count_cut_off)

    async def tokenizer_info(self, request: Request) -> Response:
        """The special tokens and the size of the vocabulary."""
        return json_response(tokenizer_info(self.models.get(request.query_params.get("model"))))

    # Looking at a model

    async def inspect(self, request: Request) -> Response:
        """Attention weights, logit lens and norms of a text."""
        body = await read_body(request, INSPECT)
        model = self.models.get(body.get("model"))
        answer = self.side_work.run(lambda check: inspection(body, model, check))
        return await answer_once(request, answer, self.config.timeout, self._count_cut_off)

    async def report(self, request: Request) -> Response:
        """The report of the run that trained a model, as a page."""
        model = self.models.get(request.query_params.get("model"))

        async def answer() -> Response:
            return page_response(await self.side_work.run(lambda _: report(model)))

        return await answer_once(request, answer(), self.config.timeout, self._count_cut_off)

    def _count_cut_off(self, cut_off: bool) -> None:
        self.metrics.cut_off += cut_off

    # The server itself

    async def health(self, _: Request) -> Response:
        """Whether the models are loaded."""
        self.models.get(None)
        return json_response({"status": "ok"})

    async def prometheus(self, _: Request) -> Response:
        """Counters and durations."""
        batches = [model.batch for model in self.models.all]
        counts = [(batch.n_prompt_tokens, batch.n_cached_tokens, batch.prefixes.n_bytes) for batch in batches]
        read, cached, size = (sum(each) for each in zip((0, 0, 0), *counts, strict=True))
        state = (
            ("minigpt_texts", "gauge", "texts that are being generated or wait for their turn", self.hub.n_texts),
            ("minigpt_running", "gauge", "texts in the batches", sum(batch.n_running for batch in batches)),
            ("minigpt_prefix_cache_bytes", "gauge", "size of the prefix caches", size),
            ("minigpt_prompt_tokens_read_total", "counter", "tokens of prompts that the models have read", read),
            ("minigpt_prompt_tokens_cached_total", "counter", "tokens of prompts from the prefix caches", cached),
        )
        return PlainTextResponse(self.metrics.text(state), media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        """The OpenAPI file."""
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
    middleware = [Middleware(ResponseCounter, responses=endpoints.metrics.responses, paths=paths)]
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
            endpoints.stop()
            await endpoints.hub.stop()

    application = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            ApiError: _api_error,
            TokenizerError: _text_error,
            HTTPException: _http_error,
            ClientDisconnect: _left,
            Exception: _bug,
        },
    )
    application.router.redirect_slashes = False
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


async def _left(_: Request, __: Exception) -> Response:
    """The client has left before its answer: nobody reads this response."""
    return Response(status_code=499)


async def _bug(_: Request, error: Exception) -> Response:
    """The answer shows nothing of the error; the terminal does."""
    traceback.print_exception(error, file=sys.stderr)
    found = ApiError(500, "the server failed; its terminal shows the cause", code="internal_error")
    return json_response(found.to_dict(), found.status)
