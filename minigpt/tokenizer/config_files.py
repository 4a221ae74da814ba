"""Reads what the config files next to a tokenizer say about its tokens."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minigpt.bounded_reading import read_json_unicode, read_regular
from minigpt.errors import TokenizerError, reason_of
from minigpt.tokenizer.huggingface_json import AddedToken, parse_added_token
from minigpt.tokenizer.vocabulary import END_OF_TEXT, OtherRulesError

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
_FILES = ("special_tokens_map.json", "added_tokens.json", CONFIG, "config.json", "generation_config.json")
PATHS = ("_name_or_path", "name_or_path", "tokenizer_file", "special_tokens_map_file")
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_ROLES_OF_SEVERAL = ("additional_special_tokens", "extra_special_tokens")
_GPT2_TOKENIZERS = (None, "GPT2Tokenizer", "GPT2TokenizerFast")


class TokenizerConfig(NamedTuple):
    """The entries of the config files next to a tokenizer.

    `tokens` are added tokens with Hugging Face's options of each, `roles` the names of special tokens by role, `names`
    those of other special tokens. `end_ids` are the eos_token_id of generation_config.json and config.json, in this
    order; `stop_ids` those of the first that has one, at which a generated text ends, as in transformers.
    `suppressed_ids` are the suppress_tokens of generation_config.json, which are never generated. `options` is the
    content of tokenizer_config.json, `class_name` the tokenizer's class in transformers, and `chat_template` the
    Jinja template of conversations, in chat_template.jinja or else in tokenizer_config.json.
    """

    tokens: Sequence[tuple[str, int, Mapping[str, Any]]]
    roles: Mapping[str, str]
    names: Sequence[str]
    end_ids: Sequence[int]
    stop_ids: Sequence[int]
    suppressed_ids: Sequence[int]
    options: Mapping[str, Any]
    class_name: str | None
    chat_template: str | None

    @property
    def adds_nothing(self) -> bool:
        """Whether they name no token other than GPT-2's end-of-text."""
        return not self.tokens and {*self.roles.values(), *self.names} <= {END_OF_TEXT}

    @property
    def is_gpt2_tokenizer(self) -> bool:
        """Whether transformers reads the tokenizer as a GPT2Tokenizer."""
        return self.options.get("tokenizer_class") in _GPT2_TOKENIZERS

    def prefix(self, ids: Mapping[str, int]) -> Sequence[int]:
        """The ids that transformers puts before a text if there is no tokenizer.json, whose post_processor says it."""
        bos = self.roles.get("bos_token", END_OF_TEXT if self.is_gpt2_tokenizer else "")
        return [ids[bos]] if self.options.get("add_bos_token") and bos in ids else []

    @property
    def literal_tokens(self) -> list[AddedToken]:
        """The added tokens, all of which match literally.

        Raises: OtherRulesError if the files add something to every text, or a token does not match literally.
        """
        if self.options.get("add_prefix_space"):
            raise OtherRulesError(
                f"its add_prefix_space ({self.options['add_prefix_space']!r}) must be false, because it changes texts"
            )
        return [parse_added_token(content, id, options) for content, id, options in self.tokens]


def read_config(directory: Path) -> TokenizerConfig:
    """The entries of the config files in a directory.

    Raises: TokenizerError if one is damaged.
    """
    tokens: list[tuple[str, int, Mapping[str, Any]]] = []
    roles: dict[str, str] = {}
    names: list[str] = []
    ids: dict[tuple[str, str], list[int]] = {}
    options: Mapping[str, Any] = {}
    class_name = chat_template = None
    for name in _FILES:
        path = directory / name
        if not path.exists():
            continue
        with as_tokenizer_error(path):
            content: Any = read_json_unicode(path, PATHS)
            if name in ("config.json", "generation_config.json"):
                for key in ("eos_token_id", "suppress_tokens"):
                    found = content.get(key)  # one id, a list, or none
                    ids[name, key] = [id for id in (found if isinstance(found, list) else [found]) if type(id) is int]
                class_name = class_name or content.get("tokenizer_class")
            elif name == "added_tokens.json":
                tokens += [(text, id, {}) for text, id in content.items()]
            else:
                roles |= {role: _token_name(content[role]) for role in _ROLES if content.get(role)}
                for role in _ROLES_OF_SEVERAL:
                    more = content.get(role) or ()
                    names += map(_token_name, more.values() if isinstance(more, dict) else more)
                for id, token in (content.get("added_tokens_decoder") or {}).items():
                    tokens.append((token["content"], int(id), token))
                if name == CONFIG:
                    options, class_name = content, content.get("tokenizer_class") or class_name
                    found = content.get("chat_template")
                    if isinstance(found, list):  # of several templates with names
                        found = {each["name"]: each["template"] for each in found}.get("default")
                    chat_template = found if isinstance(found, str) else None
    path = directory / "chat_template.jinja"
    if path.exists():
        with as_tokenizer_error(path):
            chat_template = read_regular(path).decode()
    own, generation = (ids.get((name, "eos_token_id"), []) for name in ("config.json", "generation_config.json"))
    suppressed = ids.get(("generation_config.json", "suppress_tokens"), [])
    ends = generation + own, generation or own
    return TokenizerConfig(tokens, roles, names, *ends, suppressed, options, class_name, chat_template)


def end_token(given: str | None, candidates: Iterable[str | None], ids: Mapping[str, int]) -> str:
    """The end-of-text token: the one given, else the first of the candidates that has an id.

    Raises: TokenizerError if there is none.
    """
    end = given or next((name for name in candidates if name in ids), None)
    if end is None or end not in ids:
        reason = f"{end!r} has no id" if end else "no eos_token has an id"
        raise TokenizerError(f"it must name its end-of-text token, but {reason}")
    return end


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Writes a file as bytes, because Windows would change the line ends of a text."""
    path.write_bytes(json.dumps(content, indent=indent, ensure_ascii=False).encode() + b"\n")


def _token_name(token: Any) -> str:
    """The name of a token in a config file, which writes it as a string or as an object."""
    name = token if isinstance(token, str) else token["content"]
    if not isinstance(name, str):
        raise TypeError(name)
    return name


@contextlib.contextmanager
def as_tokenizer_error(path: Path) -> Iterator[None]:
    """Turns every error in reading a file into a TokenizerError that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise TokenizerError(
            f"{path.parent} must hold a tokenizer.json, or a vocab.json and a merges.txt; it has no {path.name}"
        ) from error
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({reason_of(error)})") from error
    except ValueError as error:  # a TokenizerError, or invalid JSON or UTF-8
        reason = error if isinstance(error, TokenizerError) else f"it is damaged ({error})"
        raise TokenizerError(f"{path} cannot be used: {reason}") from error
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise TokenizerError(f"{path} cannot be used: its layout is not that of a Hugging Face tokenizer") from error
