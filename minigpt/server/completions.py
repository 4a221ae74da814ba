"""The answers of completions and chat completions."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from minigpt.generation.decoding import GeneratedToken
from minigpt.generation.streaming import Piece
from minigpt.server.answering import json_response, large_json_response
from minigpt.server.batching.requests import Event, GenerationRequest, ScoredPrompt
from minigpt.server.choices import Choice, Reply, TokenScores, best
from minigpt.server.event_hub import EventHub
from minigpt.server.request_bodies import CompletionBody
from minigpt.server.served_model import ServedModel

_LARGE_ANSWER = 20_000  # tokens; a larger one is written in a thread, so that other requests go on meanwhile


class Completion:
    """The answer to one request for completions, while it grows."""

    def __init__(
        self,
        model: ServedModel,
        body: CompletionBody,
        requests: Sequence[GenerationRequest],
        texts: Sequence[str],
        *,
        is_chat: bool = False,
        is_transcript: bool = False,
    ) -> None:
        """`requests` are one for each prompt, and `texts` what the prompts say."""
        self.model, self.body, self.requests, self.is_chat = model, body, requests, is_chat
        self.includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._samples = requests[0].config.samples
        self.choices = {
            request: [Choice(model, text, len(request.end)) for _ in range(self._samples)]
            for request, text in zip(requests, texts, strict=True)
        }
        self.n_prompt_tokens = sum(len(request.prompt) for request in requests)
        self.n_texts = sum(request.n_texts for request in requests)
        self._header = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" + ".chunk" * body.stream if is_chat else "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self._begun: set[int] = set()  # choices of which a piece was sent
        self._replies = [Reply(is_transcript=is_transcript) for _ in range(body.n)] if is_chat else []
        if body.echo and body.logprobs is None:
            for request in requests:
                self._echo(request, [GeneratedToken(id) for id in request.prompt])

    @property
    def n_generated(self) -> int:
        """How many tokens were generated, those of texts that are not returned included."""
        return sum(choice.n_tokens for choices in self.choices.values() for choice in choices)

    @property
    def n_listed(self) -> int:
        """How many tokens the whole answer lists, those of echoed prompts and the alternatives included."""
        echoed = self.n_prompt_tokens * self._samples if self.body.echo else 0
        return (self.n_generated + echoed) * (1 + (self.body.logprobs or 0))

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
            if not self.body.max_tokens:
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
        return self.requests.index(request) * self.body.n

    def to_dict(self) -> dict[str, Any]:
        """The whole answer."""
        returned = []
        for request in self.requests:
            choices = self.choices[request]
            returned += best(choices, self.body.n) if self._samples > self.body.n else choices
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
        usage = {"usage": None} if self.includes_usage else {}
        return {**self._header, "choices": choices, **usage} if choices else None

    def usage_chunk(self) -> dict[str, Any]:
        """The last piece of a stream with `include_usage`."""
        return {**self._header, "choices": [], "usage": self.usage}

    def _choice(self, index: int, choice: Choice, text: str, scores: TokenScores) -> dict[str, Any]:
        if self.is_chat:
            content, finish_reason = self._replies[index].feed(text, choice.finish_reason)
            role = {} if index in self._begun else {"role": "assistant"}
            return {
                "index": index,
                "delta" if self.body.stream else "message": {**role, "content": content},
                "logprobs": None if self.body.logprobs is None else scores.of_chat(self.model),
                "finish_reason": finish_reason,
            }
        with_ids = self.body.return_token_ids
        return {
            "index": index,
            "text": text,
            "logprobs": None if self.body.logprobs is None else scores.to_dict(self.model, with_ids=with_ids),
            "finish_reason": choice.finish_reason,
            **(self._ids(index, scores) if with_ids else {}),
        }

    def _ids(self, index: int, scores: TokenScores) -> dict[str, Any]:
        """The ids of a choice by vLLM's names; those of the prompt are in the first piece of a stream only."""
        prompt = None if index in self._begun else list(self.requests[index // self.body.n].prompt)
        return {"prompt_token_ids": prompt, "token_ids": [token.id for token in scores.tokens]}


async def complete(completion: Completion, hub: EventHub) -> Response:
    """Generates everything, then answers.

    Raises: ApiError.
    """
    async with hub.running(completion.model, completion.requests) as steps:
        async for step in steps:
            for event in step:
                completion.add(event)
    if completion.n_listed > _LARGE_ANSWER:
        return await asyncio.to_thread(lambda: large_json_response(completion.to_dict()))
    return json_response(completion.to_dict())


async def stream(completion: Completion, hub: EventHub) -> AsyncIterator[Mapping[str, Any]]:
    """Answers in pieces, one for each step that adds something to show.

    Raises: ApiError.
    """
    async with hub.running(completion.model, completion.requests) as steps:
        async for step in steps:
            chunk = completion.chunk([changed for event in step for changed in completion.add(event)])
            if chunk is not None:
                yield chunk
    if completion.includes_usage:
        yield completion.usage_chunk()
