"""`POST /v1/completions`: continues and scores prompts."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from minigpt.generation.batching.requests import Event, GenerationRequest, ScoredPrompt
from minigpt.generation.decoding import GeneratedToken
from minigpt.generation.streaming import Piece
from minigpt.server.answering import json_response, large_json_response
from minigpt.server.choices import Choice, TokenScores, best
from minigpt.server.completion_options import CompletionOptions
from minigpt.server.event_hub import EventHub

_LARGE_ANSWER = 20_000  # tokens; a larger one is written in a thread, so that other requests go on meanwhile


class Completion:
    """The answer to one request for completions, while it grows."""

    def __init__(self, options: CompletionOptions) -> None:
        self.options, self.model = options, options.model
        self.requests = options.requests()
        samples = range(options.sampling.samples)
        self.choices = {
            request: [Choice(self.model, text, len(request.end)) for _ in samples]
            for request, text in zip(self.requests, options.texts, strict=True)
        }
        self.n_prompt_tokens = sum(len(request.prompt) for request in self.requests)
        self._header = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model.name,
        }
        self.n_texts = sum(request.n_texts for request in self.requests)
        self._begun: set[int] = set()  # choices of which a piece was sent
        if options.echo and options.logprobs is None:
            for request in self.requests:
                self._echo(request, [GeneratedToken(id) for id in request.prompt])

    @property
    def n_generated(self) -> int:
        """How many tokens were generated, those of texts that are not returned included."""
        return sum(choice.n_tokens for choices in self.choices.values() for choice in choices)

    @property
    def n_listed(self) -> int:
        """How many tokens the whole answer lists, those of echoed prompts and the alternatives included."""
        echoed = self.n_prompt_tokens * self.options.sampling.samples if self.options.echo else 0
        return (self.n_generated + echoed) * (1 + (self.options.logprobs or 0))

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens, in OpenAI's form."""
        generated = self.n_generated
        return {
            "prompt_tokens": self.n_prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.n_prompt_tokens + generated,
        }

    def add(self, event: Event) -> list[tuple[int, Choice]]:
        """Adds what was generated; returns the choices that it changed, with their numbers."""
        choices = self.choices[event.request]
        if isinstance(event.content, ScoredPrompt):
            if event.content.tokens:
                self._echo(event.request, event.content.tokens)
            if not self.options.max_tokens:
                for choice in choices:
                    choice.finish_reason = "length"
            return list(enumerate(choices, self._first_index(event.request)))
        assert isinstance(event.content, Piece)
        choices[event.content.row].add(event.content)
        return [(self._first_index(event.request) + event.content.row, choices[event.content.row])]

    def _echo(self, request: GenerationRequest, tokens: Sequence[GeneratedToken]) -> None:
        for choice in self.choices[request]:
            choice.add_prompt(tokens)

    def _first_index(self, request: GenerationRequest) -> int:
        return self.requests.index(request) * self.options.n

    def to_dict(self) -> dict[str, Any]:
        """The whole answer."""
        returned = []
        for request in self.requests:
            choices = self.choices[request]
            returned += best(choices, self.options.n) if self.options.ranks else choices
        return {
            **self._header,
            "choices": [self._choice(index, choice, *choice.take()) for index, choice in enumerate(returned)],
            "usage": self.usage,
        }

    def chunk(self, changed: Sequence[tuple[int, Choice]]) -> dict[str, Any] | None:
        """A piece of a streamed answer: what is new in these choices; None if there is nothing to show."""
        choices = []
        for index, choice in dict(changed).items():
            text, scores = choice.take()
            if text or scores.tokens or choice.finish_reason:
                choices.append(self._choice(index, choice, text, scores))
                self._begun.add(index)
        usage = {"usage": None} if self.options.include_usage else {}
        return {**self._header, "choices": choices, **usage} if choices else None

    def usage_chunk(self) -> dict[str, Any]:
        """The last piece of a stream with `include_usage`."""
        return {**self._header, "choices": [], "usage": self.usage}

    def _choice(self, index: int, choice: Choice, text: str, scores: TokenScores) -> dict[str, Any]:
        with_ids = self.options.return_token_ids
        return {
            "index": index,
            "text": text,
            "logprobs": None if self.options.logprobs is None else self._logprobs(scores),
            "finish_reason": choice.finish_reason,
            **(self._ids(index, scores) if with_ids else {}),
        }

    def _logprobs(self, scores: TokenScores) -> dict[str, Any]:
        if self.options.is_chat:
            return scores.of_chat(self.model)
        return scores.to_dict(self.model, with_ids=self.options.return_token_ids)

    def _ids(self, index: int, scores: TokenScores) -> dict[str, Any]:
        """The ids of a choice by vLLM's names; those of the prompt are in the first piece of a stream only."""
        prompt = None if index in self._begun else list(self.requests[index // self.options.n].prompt)
        return {"prompt_token_ids": prompt, "token_ids": [token.id for token in scores.tokens]}


async def complete(
    completion: Completion, hub: EventHub, form: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
) -> Response:
    """Generates everything, then answers in this form.

    Raises: ApiError.
    """
    async with hub.running(completion.model, completion.requests) as steps:
        async for step in steps:
            for event in step:
                completion.add(event)
    if completion.n_listed > _LARGE_ANSWER:
        return await asyncio.to_thread(lambda: large_json_response(form(completion.to_dict())))
    return json_response(form(completion.to_dict()))


async def stream(completion: Completion, hub: EventHub) -> AsyncIterator[Mapping[str, Any]]:
    """Answers in pieces, one for each step that adds something to show.

    Raises: ApiError.
    """
    async with hub.running(completion.model, completion.requests) as steps:
        async for step in steps:
            chunk = completion.chunk([changed for event in step for changed in completion.add(event)])
            if chunk is not None:
                yield chunk
    if completion.options.include_usage:
        yield completion.usage_chunk()
