"""Builds the choices of a completion from what a batch generates: text, log-probabilities, the best of several."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minigpt.chat_logs.transcript import ReplyReader
from minigpt.generation.decoding import GeneratedToken
from minigpt.generation.streaming import Piece
from minigpt.server.served_model import ServedModel
from minigpt.tokenizer.tokenizer import StreamDecoder

FINISH_REASONS = {"end_of_text": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True)
class TokenScores:
    """Tokens with their log-probabilities, and where each begins, in characters from the beginning of the prompt."""

    tokens: Sequence[GeneratedToken]
    offsets: Sequence[int]

    def to_dict(self, model: ServedModel, *, with_ids: bool = False) -> dict[str, Any]:
        """The `logprobs` of a choice in OpenAI's form. The token itself is among its alternatives in any case.

        With `with_ids`, `content` has them once more in the form of OpenAI's chat completions, with the tokens' ids.
        """
        content = {"content": [_with_id(token, model) for token in self.tokens]} if with_ids else {}
        return {
            "tokens": [model.token_text(token.id) for token in self.tokens],
            "token_logprobs": [token.logprob for token in self.tokens],
            "top_logprobs": [_alternatives(token, model) for token in self.tokens],
            "text_offset": list(self.offsets),
            **content,
        }

    def of_chat(self, model: ServedModel) -> dict[str, Any]:
        """The `logprobs` of a choice in the form of OpenAI's chat completions. An end of the text is not among them."""
        ends = model.tokenizer.end_ids
        content = [_with_id(token, model) for token in self.tokens if token.id not in ends]
        for token in content:
            for each in (token, *token["top_logprobs"]):
                del each["id"]
        return {"content": content, "refusal": None}


def _alternatives(token: GeneratedToken, model: ServedModel) -> dict[str, float] | None:
    if token.logprob is None:  # the first token of a prompt
        return None
    return {model.token_text(id): logprob for id, logprob in (*token.alternatives, (token.id, token.logprob))}


def _with_id(token: GeneratedToken, model: ServedModel) -> dict[str, Any]:
    alternatives = [_identified(id, logprob, model) for id, logprob in token.alternatives]
    return {**_identified(token.id, token.logprob, model), "top_logprobs": alternatives}


def _identified(id: int, logprob: float | None, model: ServedModel) -> dict[str, Any]:
    """A token by its id, text and bytes; a special token has no bytes."""
    is_special = id in model.tokenizer.special.values()
    return {
        "id": id,
        "token": model.token_text(id),
        "bytes": None if is_special else list(model.tokenizer.token_bytes(id)),
        "logprob": logprob,
    }


@dataclass
class Choice:
    """One text of a completion, while it grows.

    A token is given out together with the text that it begins in, so that what follows a stop string is not given out.
    """

    model: ServedModel
    prompt: str  # its text
    healed: int = 0  # characters at its end that the first tokens spell again
    text: str = ""
    finish_reason: str | None = None
    n_tokens: int = 0  # generated
    logprob: float = 0.0  # of all of them
    _decoder: StreamDecoder = field(init=False)
    _begin: int = field(init=False)  # of the text, in characters from the beginning of the prompt
    _length: int = field(init=False)  # characters of the prompt and of all tokens so far
    _given: int = 0  # characters of the text that were given out
    _is_cut: bool = False  # before a stop string, to which the last tokens belong
    _pending: list[tuple[GeneratedToken, int]] = field(default_factory=list)  # tokens with their offsets

    def __post_init__(self) -> None:
        self._decoder = self.model.tokenizer.decoder(continues=True)
        self._begin = len(self.prompt)
        self._length = self._begin - self.healed

    def add_prompt(self, tokens: Sequence[GeneratedToken]) -> None:
        """Puts the prompt before the text, for `echo`. Some tokenizers drop white space of it or change characters."""
        decoder, offset, end = self.model.tokenizer.decoder(), 0, len(self.prompt)
        for token in tokens:
            piece = decoder.feed(token.id)
            if token.id in self.model.tokenizer.prefix_ids and not self.prompt.startswith(piece.strip(), offset):
                self._pending.append((token, offset))  # the tokenizer puts it before a text, which does not contain it
                continue
            begin, visible = offset, piece.lstrip()
            while visible and offset < end and self.prompt[offset].isspace():
                offset += 1
            self._pending.append((token, offset if visible == piece else begin))
            offset = min(end, offset + len(visible or piece))
        self.text, self._begin = self.prompt, 0

    def add(self, piece: Piece) -> None:
        """Adds a generated token. What it spells again of the prompt is not in the text."""
        self.n_tokens += 1
        self.logprob += piece.token.logprob or 0.0
        self.text += piece.text
        if piece.finish_reason == "end_of_text":
            self._pending.append((piece.token, self._begin + len(self.text)))
        else:
            self._pending.append((piece.token, self._length))
            self._length += len(self._decoder.feed(piece.token.id))
        if piece.finish_reason is not None:
            self.finish_reason = FINISH_REASONS[piece.finish_reason]
            self._is_cut = piece.finish_reason == "stop"

    def take(self) -> tuple[str, TokenScores]:
        """The text that was not given out yet, and its tokens."""
        text, end = self.text[self._given :], self._begin + len(self.text)
        self._given = len(self.text)
        is_whole = self.finish_reason is not None and not self._is_cut
        ready = [(token, offset) for token, offset in self._pending if is_whole or max(offset, self._begin) < end]
        self._pending = [] if self.finish_reason is not None else self._pending[len(ready) :]
        return text, TokenScores([token for token, _ in ready], [offset for _, offset in ready])


class Reply:
    """Reads the text of one answer in a conversation piece by piece: its content, and where it ends.

    The transcripts of models that minigpt trained on conversations are read as in `minigpt chat`: further lines of a
    message begin with a space, and any other line begins another turn. Other models' answers are the text itself.
    """

    def __init__(self, *, is_transcript: bool) -> None:
        self._reader = ReplyReader() if is_transcript else None
        self._has_ended = False

    def feed(self, text: str, finish_reason: str | None) -> tuple[str, str | None]:
        """The content that the text adds, and the reason why the answer ends."""
        if self._reader is not None:
            text, ends = ("", True) if self._has_ended else self._reader.feed(text)
            self._has_ended |= ends
        return text, "stop" if self._has_ended and finish_reason is not None else finish_reason


def best(choices: Sequence[Choice], n: int) -> list[Choice]:
    """The n choices with the highest log-probability per token, best first; the earlier of equal ones first."""
    return sorted(choices, key=lambda choice: -choice.logprob / max(1, choice.n_tokens))[:n]
