"""Files of tokenizers that only the tokenizers library reads, and models without a tokenizer."""

import json

import pytest
import transformers
from hypothesis import assume, example, given, settings
from tokenizer_files import (
    PLAIN,
    TEXT,
    TEXTS,
    change,
    content_of,
    put,
    put_old,
    trained,
)

from minigpt.errors import TokenizerError
from minigpt.foreign_tokenizers.library import LibraryVocabulary
from minigpt.generation.healing import encode_prompt
from minigpt.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize("add_bos", [None, True, False])
@pytest.mark.parametrize("add_prefix_space", [True, False])
def test_add_bos_token_counts_where_there_is_no_tokenizer_json(add_bos, add_prefix_space, tmp_path):
    put_old(tmp_path, "transformers", ["<s>", "</s>"])
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "</s>"}
    config |= {"add_prefix_space": add_prefix_space} | ({} if add_bos is None else {"add_bos_token": add_bos})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    ours.save(tmp_path / "saved")
    for tokenizer in (ours, Tokenizer.load(tmp_path / "saved")):
        assert encode_prompt(tokenizer, "Hello", token_healing=False).ids == theirs.encode("Hello")
        # In documents it begins each, after the token that ends the one before.
        start = [0] if add_bos or isinstance(ours.vocabulary, LibraryVocabulary) else []
        both = [*ours.encode("a"), 1, *start, *ours.encode("b")]
        assert tokenizer.encode_array("a<|endoftext|>b", documents=True).tolist() == both


WAYS = (
    *("prefix", "prefix in the config", "bos", "digits", "no split", "other expression", "other behaviour"),
    *("normalizer", "template", "stripping", "overlap", "alphabet", "character", "order", "ignore", "characters"),
)


@pytest.mark.parametrize("way", WAYS)
def test_rules_that_are_not_gpt2s_give_the_ids_of_transformers(way, tmp_path):
    folder = put(tmp_path, *change(content_of(trained()), dict(PLAIN), way))
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.is_lossless == (way in ("bos", "template"))

    @settings(deadline=None, max_examples=40)
    @given(TEXTS)
    @example(TEXT)
    @example("a<new>>b <new> c")
    def check(text):
        assume(not any(token in text for token in ours.special))  # as in check_ids
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)

    check()


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("type", "its unk_token (None) must be a token"),
        ("prefix by default", "the tokenizers library refuses it (missing field `add_prefix_space`"),
        ("no byte", "the tokenizers library refuses it (Token `a` out of vocabulary"),
        ("ordinary", "the tokenizers library refuses it (Token "),
        ("decoder", "its layout is not that of a Hugging Face tokenizer"),
    ],
)
def test_a_file_that_no_rules_can_be_made_of_is_refused_by_name(way, message, tmp_path):
    folder = put(tmp_path, *change(content_of(trained()), dict(PLAIN), way))
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(folder)
    assert message in str(caught.value)
    assert str(folder / "tokenizer.json") in str(caught.value)


def test_character_tokens_without_ignore_merges_are_as_transformers_reads_them(tmp_path):
    Tokenizer.train(["é"], "chars").save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["ignore_merges"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).encode("é") == theirs.encode("é", add_special_tokens=False)
