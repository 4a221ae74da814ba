"""What a request for completions asks for, checked, and the batch requests that answer it."""

import copy
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.healing import Prompt
from minigpt.generation.sampling import Sampler
from minigpt.server.api_error import invalid
from minigpt.server.batching.requests import GenerationRequest, check_request
from minigpt.server.completions import Completion
from minigpt.server.request_bodies import CompletionBody
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel

# The settings that a request and SamplingConfig have under the same name.
_SHARED = (
    "temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "no_repeat_ngram_size", "min_new_tokens", "until", "allow_invalid_utf8", "token_healing",
    "allow_unseen_tokens",
)  # fmt: skip


def new_completion(body: CompletionBody, model: ServedModel, config: ServeConfig) -> Completion:
    """The completion that a request asks for, before anything is generated.

    Raises: ApiError for what GPT-2 cannot do, for a prompt that does not fit, and for settings that contradict.
    """
    if body.suffix:
        raise invalid("suffix is not possible: GPT-2 continues a text, it cannot fill a gap", "suffix")
    prompts = _prompts(body, model, config)
    return completion_of(body, prompts, _texts(body.prompt, prompts, model), model, config)


def completion_of(
    body: CompletionBody,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    model: ServedModel,
    config: ServeConfig,
    *,
    is_chat: bool = False,
    is_transcript: bool = False,
) -> Completion:
    """The completion of these prompts, of a conversation or a transcript, too.

    Raises: ApiError.
    """
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens (0) must be at least 1, or 0 with echo to score a prompt only", "max_tokens")
    best_of = body.best_of or body.n
    if best_of < body.n:
        raise invalid(f"best_of ({best_of}) must be at least n ({body.n})", "best_of")
    if best_of > body.n and body.stream:
        raise invalid(
            f"best_of ({best_of}) must be n ({body.n}) with stream: the best is only known at the end", "best_of"
        )
    if body.stream_options and not body.stream:
        raise invalid("stream_options needs stream", "stream_options")
    _check_amount(prompts, best_of, body, config)
    least, most = body.min_new_tokens, max(1, body.max_tokens)
    if least > most:
        raise invalid(f"min_new_tokens ({least}) must be at most max_tokens ({body.max_tokens})", "min_new_tokens")
    try:
        sampling = SamplingConfig(
            max_new_tokens=most,
            samples=best_of,
            top_k=body.top_k if body.top_k and body.top_k > 0 else None,  # off, as in llama.cpp and vLLM
            bad_words=tuple(body.bad_words),
            logit_bias=_logit_bias(body.logit_bias, model),
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
            seed=None if body.seed is None else body.seed % 2**63,
            context=body.context or "slide",
            **{name: getattr(body, name) for name in _SHARED},
        )
    except ConfigError as error:
        raise invalid(str(error)) from error
    if body.context is None or (body.echo and body.logprobs is not None):
        _check_context(prompts, body.max_tokens, model, may_slide=body.context is None)
    requests = _requests(prompts, sampling, body, model, one_turn=is_transcript)
    return Completion(model, body, requests, texts, is_chat=is_chat, is_transcript=is_transcript)


def _requests(
    prompts: Sequence[Prompt], sampling: SamplingConfig, body: CompletionBody, model: ServedModel, *, one_turn: bool
) -> list[GenerationRequest]:
    """One batch request for each prompt.

    A seed that the request names is that of all prompts, so that a prompt gets the same text in any list. Without one,
    each prompt gets its own, so that equal prompts get different texts.
    Raises: ApiError if a prompt does not fit into the context, or settings do not fit the model.
    """
    try:
        sampler = Sampler(sampling, model.tokenizer)
        requests = [
            GenerationRequest(
                prompt.ids,
                sampling,
                sampler if sampling.seed is not None else _with_own_seed(sampler),
                0 if body.logprobs is None and sampling.samples > body.n else body.logprobs,  # to find the best
                score_prompt=body.echo and body.logprobs is not None,
                continues=body.max_tokens > 0,
                end=prompt.end,
                one_turn=one_turn,
            )
            for prompt in prompts
        ]
        for request in requests:
            check_request(request, model.context_length)
    except ConfigError as error:
        raise invalid(str(error)) from error
    return requests


def _with_own_seed(sampler: Sampler) -> Sampler:
    """A copy with another random seed, which shares the logits processors: some take milliseconds to build."""
    other = copy.copy(sampler)
    other.seed = secrets.randbits(32)
    return other


def _prompts(body: CompletionBody, model: ServedModel, config: ServeConfig) -> list[Prompt]:
    """The tokens of each prompt; a prompt given as ids keeps them.

    Raises: ApiError for too many prompts, and for ids that the model does not have.
    """

    def encode(text: str) -> Prompt:
        # An echoed prompt keeps its own tokens, which may be scored.
        healing = body.token_healing and not body.echo
        return model.encode(text, token_healing=healing, special_tokens=body.special_tokens)

    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return [encode(prompt)]
    if not isinstance(prompt[0], int) and len(prompt) > config.max_prompts:
        raise invalid(f"prompt has {len(prompt)} prompts; send at most {config.max_prompts} in one request", "prompt")
    if isinstance(prompt[0], str):
        return [encode(text) for text in prompt]
    prompts = [prompt] if isinstance(prompt[0], int) else prompt
    for index, ids in enumerate(prompts):
        model.check_ids(ids, "prompt" if prompts is not prompt else f"prompt[{index}]")
    return [Prompt(ids) for ids in prompts]


def _texts(prompt: Any, prompts: Sequence[Prompt], model: ServedModel) -> list[str]:
    """The own text of each prompt; that of token ids is what they decode to."""
    if isinstance(prompt, str):
        return [prompt]
    return prompt if isinstance(prompt[0], str) else [model.tokenizer.decode(each.ids) for each in prompts]


def _check_amount(prompts: Sequence[Prompt], samples: int, body: CompletionBody, config: ServeConfig) -> None:
    rows = len(prompts) * samples
    most = config.max_batch + config.max_queue
    if rows > most:
        raise invalid(
            f"{rows} texts in one request are more than the {most} that this server accepts (--max-batch and "
            "--max-queue)",
            "prompt" if len(prompts) > 1 else "n",
        )
    total = sum(len(prompt.ids) for prompt in prompts) * (samples if body.echo else 1) + rows * body.max_tokens
    if total > config.max_total_tokens:
        raise invalid(
            f"{total:,} tokens in one request are more than the {config.max_total_tokens:,} that this server accepts; "
            "lower max_tokens, n or best_of, or send fewer prompts",
            "max_tokens",
        )
    listed, most = total * (1 + (body.logprobs or 0)), 2 * config.max_total_tokens
    if listed > most:
        raise invalid(
            f"{total:,} tokens with {body.logprobs} alternatives each are {listed:,} probabilities, more than the "
            f"{most:,} that this server lists in one answer; lower logprobs, max_tokens or n, or send fewer prompts",
            "logprobs",
        )


def _check_context(prompts: Sequence[Prompt], max_tokens: int, model: ServedModel, *, may_slide: bool) -> None:
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest + max_tokens > model.context_length:
        slide = ', or send "context": "slide" to let the model see only the end of the text' if may_slide else ""
        raise invalid(
            f"this model's context length is {model.context_length} tokens, but the request needs {longest} for the "
            f"prompt and {max_tokens} for max_tokens; shorten one of them{slide}",
            "prompt" if longest >= model.context_length else "max_tokens",
            "context_length_exceeded",
        )


def _logit_bias(biases: Mapping[str, float], model: ServedModel) -> tuple[str, ...]:
    for id in biases:
        if not (id.isascii() and id.isdecimal() and len(id) < 10):
            raise invalid(f"logit_bias has the key {id[:40]!a}, which must be a token id", "logit_bias")
        model.check_ids([int(id)], "logit_bias")
    return tuple(f"#{int(id)}={number}" for id, number in biases.items())
