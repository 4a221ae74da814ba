"""Tokenizers as Hugging Face and OpenAI keep them, and the training of byte-pair merges; it encodes no text."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from minigpt.errors import TokenizerError
from minigpt.tokenizer.huggingface_json import Reading, Token, content_of, read_content, read_token
from minigpt.tokenizer.vocabulary import (
    END_OF_TEXT,
    GPT2_BYTES,
    Merge,
    Vocabulary,
    parse_merges,
    read_merges,
    read_word,
    written,
)

# Words and merges of a tokenizer without a tokenizer.json: as transformers named them, and as OpenAI did.
_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_LONG_WORD = re.compile(r"\S{256}(?=\S)")
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MORE = ("additional_special_tokens", "extra_special_tokens")
_GPT2_TOKENIZERS = (None, "GPT2Tokenizer", "GPT2TokenizerFast")
_GPT2_FILE = "9538531b4af510e665b3ab13d38c60947038e6407cc38c96e84e6a07206dae3e"  # of the tokenizer.json we write for it


def gpt2() -> Vocabulary:
    """GPT-2's own vocabulary, from the merges that OpenAI published."""
    text = (resources.files("minigpt.tokenizer.gpt2") / "vocab.bpe").read_text(encoding="utf-8")
    return Vocabulary.in_order(GPT2_BYTES, parse_merges(text))


def train_merges(texts: Iterable[str], count: int) -> list[Merge]:
    """At most `count` merges of the pairs that are most frequent in the texts, learnt one after the other.

    Each word is walked through anew for every merge, and one of 65,536 letters would take minutes: so long ones are
    learnt from in pieces.
    """
    import tokenizers  # here, because only training needs it
    from tokenizers import models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=256 + count,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(map(_with_short_words, texts), trainer)
    return read_merges(json.loads(trained.to_str())["model"]["merges"], {})


def _with_short_words(text: str) -> str:
    return _LONG_WORD.sub("\\g<0>\n", text)


def write(directory: Path, vocabulary: Vocabulary) -> None:
    """Writes a tokenizer's files into a directory, which is made where it is missing.

    They are `tokenizer.json` and `tokenizer_config.json`, and for older programs, where words come of merges,
    `vocab.json` and `merges.txt`.
    """
    end = vocabulary.end_of_text
    roles = {"bos_token": end, "eos_token": end, "unk_token": end, "pad_token": end, **vocabulary.roles}
    config = {
        # Not GPT2Tokenizer, which would bring GPT-2's own split whatever tokenizer.json says; and not the name that
        # transformers 5 would write, which version 4 does not know. Both read this one, and so does vLLM by them.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "model_input_names": ["input_ids", "attention_mask"],  # not token_type_ids, which no GPT-2 takes
        "padding_side": "left",  # so that texts of several lengths go on from their own last token
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,  # which transformers 4 does unless told not to
    }
    directory.mkdir(parents=True, exist_ok=True)
    content = content_of(vocabulary)
    (directory / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if not vocabulary.by_character:
        vocab = json.dumps(content["model"]["vocab"], ensure_ascii=False)
        (directory / "vocab.json").write_text(vocab + "\n", encoding="utf-8")
        merges = "\n".join(["#version: 0.2", *content["model"]["merges"]])
        (directory / "merges.txt").write_text(merges + "\n", encoding="utf-8")


def read(directory: Path, end_of_text: str | None = None) -> Vocabulary:
    """The vocabulary in a directory's `tokenizer.json`, or in `vocab.json` and `merges.txt`, or in `encoder.json` and
    `vocab.bpe`, with the tokens that the files beside them add and name.

    Raises: TokenizerError where there is none, it is damaged, or it is not one that minigpt gives the same ids as.
    """
    beside = _beside(directory)
    path = directory / "tokenizer.json"
    pair = next((pair for pair in _PAIRS if (directory / pair[1]).exists()), None)
    if pair is None or path.exists():
        with _explained(path):
            # Most folders have GPT-2's own words, which take half the time to make that they take to read and check.
            if beside.adds_nothing and end_of_text in (None, END_OF_TEXT) and _hash_of(path) == _GPT2_FILE:
                return gpt2()
            reading = read_content(_read_json(path), is_gpt2_tokenizer=beside.is_gpt2_tokenizer)
            return _vocabulary(reading, beside, end_of_text)
    path = directory / pair[1]
    with _explained(path):
        version, *lines = path.read_text(encoding="utf-8").split("\n")
        merges = [line for line in (version, *lines) if line and not (line is version and line.startswith("#version"))]
    path = directory / pair[0]
    with _explained(path):
        return _vocabulary(Reading(_read_json(path), merges, (), False, False), beside, end_of_text)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what is wrong with a file into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise TokenizerError(
            f"{path.parent} must hold a tokenizer.json, or a vocab.json and a merges.txt, and has no {path.name}"
        ) from error
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from error
    except (ValueError, RecursionError) as error:  # our own, or JSON's, or Unicode's
        reason = error if isinstance(error, TokenizerError) else "it is damaged"
        raise TokenizerError(f"{path} cannot be used: {reason}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise TokenizerError(f"{path} cannot be used: it is not laid out as a tokenizer of Hugging Face's") from error


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


class _Beside(NamedTuple):
    """What the small files beside a tokenizer's say: tokens, the names of special ones by their roles, the names of
    others, and the id that the model ends with."""

    tokens: Sequence[Token]
    roles: Mapping[str, str]
    names: Sequence[str]
    end_id: int | None
    is_gpt2_tokenizer: bool

    @property
    def adds_nothing(self) -> bool:
        """Whether they know of no token but the end of text."""
        return not self.tokens and {*self.roles.values(), *self.names} <= {END_OF_TEXT}


def _beside(directory: Path) -> _Beside:
    """Raises: TokenizerError where one of them is damaged, or asks for more than the words of a text."""
    tokens: list[Token] = []
    roles: dict[str, str] = {}
    names: list[str] = []
    end_id, is_gpt2_tokenizer = None, True
    for name in ("special_tokens_map.json", "added_tokens.json", "tokenizer_config.json", "config.json"):
        path = directory / name
        if not path.exists():
            continue
        with _explained(path):
            content = _read_json(path)
            if name == "config.json":
                end_id = content.get("eos_token_id")
            elif name == "added_tokens.json":
                tokens += [Token(text, id, special=False) for text, id in content.items()]
            else:
                roles |= {role: _name(content[role]) for role in _ROLES if content.get(role)}
                for role in _MORE:
                    more = content.get(role) or ()
                    names += map(_name, more.values() if isinstance(more, dict) else more)
                for option in ("add_prefix_space", "add_bos_token", "add_eos_token"):
                    if content.get(option):
                        raise TokenizerError(f"its {option} ({content[option]!r}) must be false, as it changes texts")
                for id, token in (content.get("added_tokens_decoder") or {}).items():
                    tokens.append(read_token(token["content"], int(id), token))
                if name == "tokenizer_config.json":
                    is_gpt2_tokenizer = content.get("tokenizer_class") in _GPT2_TOKENIZERS
    return _Beside(tokens, roles, names, end_id, is_gpt2_tokenizer)


def _name(token: Any) -> str:
    """A token in a file that names it, or describes it."""
    name = token if isinstance(token, str) else token["content"]
    if not isinstance(name, str):
        raise TypeError(name)
    return name


def _vocabulary(reading: Reading, beside: _Beside, end_of_text: str | None) -> Vocabulary:
    """Raises: TokenizerError where the parts contradict one another, or name no end of text that has an id."""
    tokens: dict[str, Token] = {}
    for token in (*reading.added, *beside.tokens):
        known = tokens.setdefault(token.content, token)
        if known.id != token.id:
            raise TokenizerError(f"its token {token.content!r} must have one id, and has {known.id} and {token.id}")
    ids = {**reading.vocab, **{token.content: token.id for token in tokens.values()}}
    ends = (beside.roles.get("eos_token"), _named(beside.end_id, ids, tokens), END_OF_TEXT)
    end = end_of_text or next((name for name in ends if name is not None and name in ids), None)
    if end is None or end not in ids:
        what = f"{end!r} has no id" if end else "no eos_token has an id"
        raise TokenizerError(f"it must say which token ends a text, and {what}")
    names = {end, *beside.roles.values(), *beside.names, *(token.content for token in reading.added if token.special)}
    names |= {token.content for token in beside.tokens if token.special}
    special = {name: id for name, id in ids.items() if name in names}
    return vocabulary_of(
        reading.vocab,
        reading.merges,
        special=special,
        end_of_text=end,
        added={name: token.id for name, token in tokens.items() if name not in special and name},
        by_character=reading.by_character,
        ignores_merges=reading.ignores_merges,
        roles={role: name for role, name in beside.roles.items() if name in special and role != "eos_token"},
    )


def _named(id: int | None, ids: Mapping[str, int], tokens: Mapping[str, Token]) -> str | None:
    """The name of a token that has this id, unless that is a word of ordinary text."""
    return next((name for name, its in ids.items() if its == id and (name in tokens or name == END_OF_TEXT)), None)


def vocabulary_of(
    vocab: Mapping[str, int],
    merges: Sequence[str | Sequence[str]],
    *,
    special: Mapping[str, int],
    end_of_text: str,
    added: Mapping[str, int],
    by_character: bool,
    ignores_merges: bool,
    roles: Mapping[str, str],
) -> Vocabulary:
    """The vocabulary of words and merges that are written in GPT-2's alphabet of bytes; a word that is an added token
    too, or a special one, is that.

    Raises: TokenizerError where they make no tokenizer, or one that splits a text otherwise.
    """
    known = {}  # read once: most words stand in several merges
    for name in vocab:
        if name not in special and (name not in added or name == written(name.encode())):
            known[name] = read_word(name)
    vocabulary = Vocabulary(
        words={word: vocab[name] for name, word in known.items()},
        merges=read_merges(merges, known),
        special=special,
        end_of_text=end_of_text,
        added=added,
        by_character=by_character,
        roles=roles,
    )
    made, long = vocabulary.words_of_text, [word for word in vocabulary.words if len(word) > 1]
    if by_character:
        if vocabulary.merges or not all(_is_character(word) for word in long):
            raise TokenizerError("it splits the text into characters, so its words must be characters")
        if long and not ignores_merges:
            raise TokenizerError("it splits the text into characters, so its ignore_merges must be true")
    elif ignores_merges:
        for word in long:
            if word not in made:
                raise TokenizerError(f"its ignore_merges must be false: no merge makes its word {written(word)!r}")
    return vocabulary


def _is_character(word: bytes) -> bool:
    try:
        return len(word.decode()) == 1
    except UnicodeDecodeError:
        return False
