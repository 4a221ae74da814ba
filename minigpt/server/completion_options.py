"""What a request for completions asks for, checked, and the batch requests that answer it."""

import copy
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.config import SamplingConfig
from minigpt.errors import ConfigError
from minigpt.generation.batching.requests import GenerationRequest, check_request
from minigpt.generation.healing import Prompt
from minigpt.generation.sampling import Sampler
from minigpt.server.api_error import invalid
from minigpt.server.request_schemas import OWN_SAMPLING
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import ServedModel

_DEFAULT_TOKENS = 16  # OpenAI's


@dataclass(frozen=True)
class CompletionOptions:
    """A request for completions: its prompts as tokens and as texts, and what each of them gets."""

    model: ServedModel
    prompts: Sequence[Prompt]
    texts: Sequence[str]
    sampling: SamplingConfig
    n: int = 1
    echo: bool = False
    logprobs: int | None = None
    max_tokens: int = _DEFAULT_TOKENS
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    is_chat: bool = False
    one_turn: bool = False  # the texts are turns of a transcript, and end before the next turn

    @property
    def ranks(self) -> bool:
        """Whether more texts are generated than returned, so that the best must be found."""
        return self.sampling.samples > self.n

    def requests(self) -> list[GenerationRequest]:
        """One batch request for each prompt.

        A seed that the request names is that of all prompts, so that a prompt gets the same text in any list. Without
        one, each prompt gets its own, so that equal prompts get different texts.
        Raises: ApiError if a prompt does not fit into the context, or settings do not fit the model.
        """
        alternatives = 0 if self.logprobs is None and self.ranks else self.logprobs
        try:
            sampler = Sampler(self.sampling, self.model.tokenizer)
            requests = [
                GenerationRequest(
                    prompt.ids,
                    self.sampling,
                    sampler if self.sampling.seed is not None else _with_own_seed(sampler),
                    alternatives,
                    score_prompt=self.echo and self.logprobs is not None,
                    continues=self.max_tokens > 0,
                    end=prompt.end,
                    one_turn=self.one_turn,
                )
                for prompt in self.prompts
            ]
            for request in requests:
                check_request(request, self.model.context_length)
        except ConfigError as error:
            raise invalid(str(error)) from error
        return requests


def _with_own_seed(sampler: Sampler) -> Sampler:
    """A copy with another random seed, which shares the logits processors: some take milliseconds to build."""
    other = copy.copy(sampler)
    other.seed = secrets.randbits(32)
    return other


def completion_options(body: Mapping[str, Any], model: ServedModel, config: ServeConfig) -> CompletionOptions:
    """The options of a body that fits the schema COMPLETION.

    Raises: ApiError for what GPT-2 cannot do, for a prompt that does not fit, and for settings that contradict.
    """
    given = {name: value for name, value in body.items() if value is not None}
    if given.get("suffix"):
        raise invalid("suffix is not possible: GPT-2 continues a text, it cannot fill a gap", "suffix")
    # An echoed prompt keeps its own tokens, which may be scored.
    token_healing = given.get("token_healing", True) and not given.get("echo")
    special_tokens = given.get("special_tokens", False)
    prompts = _prompts(given.get("prompt"), model, config, token_healing=token_healing, special_tokens=special_tokens)
    texts = _texts(given.get("prompt") or "", prompts, model)
    return generation_options(given, prompts, texts, model, config)


def generation_options(
    given: Mapping[str, Any], prompts: Sequence[Prompt], texts: Sequence[str], model: ServedModel, config: ServeConfig
) -> CompletionOptions:
    """The options for these prompts: the fields that completions and chat completions share, without those of null.

    Raises: ApiError.
    """
    max_tokens = given.get("max_tokens", _DEFAULT_TOKENS)
    if max_tokens == 0 and not given.get("echo"):
        raise invalid("max_tokens (0) must be at least 1, or 0 with echo to score a prompt only", "max_tokens")
    n = given.get("n", 1)
    best_of = given.get("best_of", n)
    if best_of < n:
        raise invalid(f"best_of ({best_of}) must be at least n ({n})", "best_of")
    if best_of > n and given.get("stream"):
        raise invalid(f"best_of ({best_of}) must be n ({n}) with stream: the best is only known at the end", "best_of")
    if given.get("stream_options") and not given.get("stream"):
        raise invalid("stream_options needs stream", "stream_options")
    _check_amount(prompts, best_of, max_tokens, config, echo=bool(given.get("echo")), logprobs=given.get("logprobs"))
    least = given.get("min_new_tokens", 0)
    if least > max(1, max_tokens):
        raise invalid(f"min_new_tokens ({least}) must be at most max_tokens ({max_tokens})", "min_new_tokens")
    sampling = _sampling(given, model, samples=best_of, max_new_tokens=max(1, max_tokens))
    if "context" not in given or (given.get("echo") and "logprobs" in given):
        _check_context(prompts, max_tokens, model, may_slide="context" not in given)
    return CompletionOptions(
        model=model,
        prompts=prompts,
        texts=texts,
        sampling=sampling,
        n=n,
        echo=bool(given.get("echo")),
        logprobs=given.get("logprobs"),
        max_tokens=max_tokens,
        stream=bool(given.get("stream")),
        include_usage=bool((given.get("stream_options") or {}).get("include_usage")),
        return_token_ids=bool(given.get("return_token_ids")),
    )


def _prompts(
    prompt: Any, model: ServedModel, config: ServeConfig, *, token_healing: bool, special_tokens: bool
) -> list[Prompt]:
    """The tokens of each prompt; a prompt given as ids keeps them.

    Raises: ApiError for too many prompts, and for ids that the model does not have.
    """

    def encode(text: str) -> Prompt:
        return model.encode(text, token_healing=token_healing, special_tokens=special_tokens)

    if prompt is None or isinstance(prompt, str):
        return [encode(prompt or "")]
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


def _check_amount(
    prompts: Sequence[Prompt], samples: int, max_tokens: int, config: ServeConfig, *, echo: bool, logprobs: int | None
) -> None:
    rows = len(prompts) * samples
    most = config.max_batch + config.max_queue
    if rows > most:
        raise invalid(
            f"{rows} texts in one request are more than the {most} that this server accepts (--max-batch and "
            "--max-queue)",
            "prompt" if len(prompts) > 1 else "n",
        )
    total = sum(len(prompt.ids) for prompt in prompts) * (samples if echo else 1) + rows * max_tokens
    if total > config.max_total_tokens:
        raise invalid(
            f"{total:,} tokens in one request are more than the {config.max_total_tokens:,} that this server accepts; "
            "lower max_tokens, n or best_of, or send fewer prompts",
            "max_tokens",
        )
    listed, most = total * (1 + (logprobs or 0)), 2 * config.max_total_tokens
    if listed > most:
        raise invalid(
            f"{total:,} tokens with {logprobs} alternatives each are {listed:,} probabilities, more than the {most:,} "
            "that this server lists in one answer; lower logprobs, max_tokens or n, or send fewer prompts",
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


def _sampling(given: Mapping[str, Any], model: ServedModel, *, samples: int, max_new_tokens: int) -> SamplingConfig:
    """The sampling settings, with OpenAI's defaults.

    Raises: ApiError for a value that is out of bounds.
    """
    own: dict[str, Any] = {name: given[name] for name in OWN_SAMPLING if name in given}
    if own.get("top_k", 1) < 1:  # off, as in llama.cpp and vLLM
        del own["top_k"]
    if "bad_words" in own:
        own["bad_words"] = tuple(own["bad_words"])
    stop = given.get("stop", ())
    seed = given.get("seed")
    try:
        return SamplingConfig(
            max_new_tokens=max_new_tokens,
            samples=samples,
            temperature=given.get("temperature", 1.0),
            top_p=given.get("top_p", 1.0),
            presence_penalty=given.get("presence_penalty", 0.0),
            frequency_penalty=given.get("frequency_penalty", 0.0),
            logit_bias=_logit_bias(given.get("logit_bias", {}), model),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            seed=None if seed is None else seed % 2**63,
            **own,
        )
    except ConfigError as error:
        raise invalid(str(error)) from error


def _logit_bias(biases: Mapping[str, float], model: ServedModel) -> tuple[str, ...]:
    for id in biases:
        if not (id.isascii() and id.isdecimal() and len(id) < 10):
            raise invalid(f"logit_bias has the key {id[:40]!a}, which must be a token id", "logit_bias")
        model.check_ids([int(id)], "logit_bias")
    return tuple(f"#{int(id)}={number}" for id, number in biases.items())
