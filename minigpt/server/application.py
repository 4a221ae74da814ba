"""The ASGI application: routes, errors, and what every request passes."""

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from minigpt import __version__
from minigpt.errors import TokenizerError
from minigpt.server.answering import (
    Failing,
    answer_in_pieces,
    error_response,
    json_response,
    read_body,
    while_connected,
)
from minigpt.server.api_error import ApiError, invalid
from minigpt.server.chat import new_chat
from minigpt.server.completion_options import new_completion
from minigpt.server.completions import Completion, complete, stream
from minigpt.server.event_hub import EventHub
from minigpt.server.front_page import front_page, page_response
from minigpt.server.guards import Guards, counting
from minigpt.server.model_views import detokenize, inspection, report, tokenize, tokenizer_info
from minigpt.server.request_bodies import ChatBody, CompletionBody, DetokenizeBody, InspectBody, TokenizeBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models, ServedModel
from minigpt.server.side_work import Turns
from minigpt.server.template_process import TemplateProcess

Log = Callable[[str], None]
Endpoint = Callable[[Request], Awaitable[Response]]
# What makes the answer to a body in a thread; it calls the function often, which raises an error once it is in vain.
View = Callable[[Any, ServedModel, Callable[[], None]], Mapping[str, Any]]
T = TypeVar("T")


class Endpoints:
    """What the server answers at each path."""

    def __init__(self, models: Models, config: ServeConfig, log: Log) -> None:
        self.models, self.config, self.log = models, config, log
        self.hub = EventHub(config, models)
        self.metrics = self.hub.metrics
        self._most = config.max_batch + config.max_queue
        self.tokenizing = Turns("a tokenizer", self._most)
        self.viewing = Turns("inspections and reports", 8)
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
        completion = await asyncio.to_thread(new_completion, body, model, self.config)
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
        asked = new_chat(body, model, self.config, self._templates[model].render)
        completion = await self._answered(request, asked)
        return await self._generated(request, completion, [message.model_dump() for message in body.messages])

    async def _generated(self, request: Request, completion: Completion, prompt: object) -> Response:
        self.hub.check_accepts(completion.n_texts)
        counted = self._counted(request.url.path, completion, prompt)
        if completion.body.stream:
            return answer_in_pieces(stream(completion, self.hub), self.config.timeout, counted)
        with counted:
            return await self._answered(request, complete(completion, self.hub))

    @contextmanager
    def _counted(self, path: str, completion: Completion, prompt: object) -> Iterator[Failing]:
        """Counts and logs when a request has ended; yields what is told of the error that ends a stream."""
        end = ""

        def failing(error: ApiError) -> None:
            nonlocal end
            end = f", then {error.status}: {error.logged(shows_texts=self.config.log_prompts)}"

        try:
            yield failing
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

    async def tokenizer_info(self, request: Request) -> Response:
        """The special tokens and the size of the vocabulary."""
        return json_response(tokenizer_info(self.models.get(request.query_params.get("model"))))

    def beside(self, kind: type[TokenizeBody | DetokenizeBody | InspectBody], turns: Turns, view: View) -> Endpoint:
        """An endpoint whose answer is computed beside generation."""

        async def endpoint(request: Request) -> Response:
            body = await read_body(request, kind)
            model = self.models.get(body.model)
            answer = turns.run(lambda check: json_response(view(body, model, check)))
            return await self._answered(request, answer)

        return endpoint

    async def report(self, request: Request) -> Response:
        """The report of the run that trained a model, as a page."""
        model = self.models.get(request.query_params.get("model"))
        return await self._answered(request, self.viewing.run(lambda _: page_response(report(model))))

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
    """The application; `models` are loaded by the caller, `log` gets a line for each request that generates or
    fails.
    """
    endpoints = Endpoints(models, config, log)
    beside, texts = endpoints.beside, endpoints.tokenizing
    get: dict[str, Endpoint] = {
        "/": endpoints.front_page,
        "/v1/models": endpoints.list_models,
        "/v1/models/{model:path}": endpoints.one_model,
        "/tokenizer_info": endpoints.tokenizer_info,
        "/report": endpoints.report,
        "/health": endpoints.health,
        "/metrics": endpoints.prometheus,
        "/openapi.json": endpoints.openapi,
    }
    post: dict[str, Endpoint] = {
        "/v1/completions": endpoints.completions,
        "/v1/chat/completions": endpoints.chat_completions,
        "/tokenize": beside(TokenizeBody, texts, lambda body, model, _: tokenize(body, model, config)),
        "/detokenize": beside(DetokenizeBody, texts, lambda body, model, _: detokenize(body, model, config)),
        "/inspect": beside(InspectBody, endpoints.viewing, inspection),
    }
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in get.items()]
    routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in post.items()]
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
            ClientDisconnect: _left,
            Exception: _bug,
        },
    )
    application.router.redirect_slashes = False
    application.middleware_stack = counting(
        application.build_middleware_stack(), endpoints.metrics.responses, paths, log, shows_texts=config.log_prompts
    )
    application.state.hub = endpoints.hub
    return application


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _text_error(request: Request, error: Exception) -> Response:
    """A text of the request that the model's tokenizer cannot encode."""
    return error_response(invalid(str(error)), request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"this path does not have the method {request.method[:20]}"
    else:
        message = "there is nothing at this path; /openapi.json lists what there is"
    return error_response(ApiError(error.status_code, message, headers=error.headers), request.scope)


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # which nobody reads


async def _bug(request: Request, error: Exception) -> Response:
    """The answer shows nothing of the error; the terminal does."""
    traceback.print_exception(error, file=sys.stderr)
    failed = ApiError(500, "the server failed; its terminal shows the cause", code="internal_error")
    return error_response(failed, request.scope)
