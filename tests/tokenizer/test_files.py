"""Tokenizer files of other programs: they give the same ids here, or are refused with an error."""

import json

import pytest
import tokenizers
import transformers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizer_files import (
    GPT2_SPLIT,
    OLD,
    PLAIN,
    SPECIAL,
    TEXT,
    TEXTS,
    change,
    content_of,
    put,
    put_old,
    trained,
)
from tokenizers import AddedToken, pre_tokenizers, processors

from minigpt.errors import TokenizerError
from minigpt.generation.healing import encode_prompt
from minigpt.tokenizer import files
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import Vocabulary


def check_ids(ours, encode, texts=TEXTS, examples=40):
    """Compares the ids of texts without special tokens, which are bytes here and special ids in transformers.

    Hypothesis draws some of them, because it takes texts from minigpt's source code too.
    """

    @settings(deadline=None, max_examples=examples)
    @given(texts)
    @example(TEXT)
    @example("")
    def check(text):
        assume(not any(token in text for token in (*SPECIAL, *ours.special)))
        ids = ours.encode(text)
        assert ids == encode(text)
        assert ours.encode_array(text).tolist() == ids
        assert ours.decode(ids) == text

    check()


def by_transformers(folder):
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    return lambda text: theirs(text).input_ids


def shuffled(content):
    """The same tokenizer with its ids reversed and with gaps."""
    model = content["model"]
    last = len(model["vocab"]) - 1
    model["vocab"] = {token: 2 * (last - id) for token, id in model["vocab"].items()}
    for token in content["added_tokens"]:
        token["id"] = model["vocab"][token["content"]]
    return content


@pytest.mark.parametrize("way", ["special first", "shuffled with gaps"])
def test_special_tokens_may_come_first_and_ids_in_any_order(way, tmp_path):
    content = content_of(trained())
    folder = put(tmp_path / "theirs", shuffled(content) if way.startswith("shuffled") else content)
    ours = Tokenizer.load(folder)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    check_ids(ours, lambda text: theirs.encode(text).ids)
    assert {name: theirs.token_to_id(name) for name in SPECIAL} == ours.special
    assert ours.end_of_text == theirs.token_to_id("</s>")
    assert ours.decode(ours.special.values()) == "".join(ours.special)
    ours.save(tmp_path / "ours")
    again = Tokenizer.load(tmp_path / "ours")
    assert (again.fingerprint, again.end_of_text) == (ours.fingerprint, ours.end_of_text)
    check_ids(ours, by_transformers(tmp_path / "ours"))
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert saved.get_vocab() == theirs.get_vocab()
    assert set(saved.all_special_tokens) == {"</s>"}
    assert saved.decode([*ours.special.values(), 300], skip_special_tokens=True) == ours.decode([300])


def test_a_special_tokens_name_in_a_text_is_text_and_a_document_ends_with_the_end_of_text_token(tmp_path):
    ours = Tokenizer.load(put(tmp_path, shuffled(content_of(trained()))))
    for name in SPECIAL:
        assert ours.special[name] not in ours.encode(f"a {name} b")
        assert ours.decode(ours.encode(f"a {name} b")) == f"a {name} b"
    separated = ours.encode_array("a<|endoftext|> b</s>", documents=True).tolist()
    assert separated == [*ours.encode("a"), ours.end_of_text, *ours.encode(" b</s>")]
    assert ours.token_lengths[list(ours.special.values())].tolist() == [0] * len(SPECIAL)


def test_saving_keeps_the_roles_of_special_tokens(tmp_path):
    roles = {"bos_token": "<s>", "pad_token": {"content": "<pad>", "special": True}, "unk_token": "<unk>"}
    ours = Tokenizer.load(put(tmp_path / "theirs", content_of(trained()), PLAIN | roles))
    ours.save(tmp_path / "ours")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert (saved.bos_token, saved.pad_token, saved.unk_token, saved.eos_token) == ("<s>", "<pad>", "<unk>", "</s>")


@pytest.mark.parametrize("prefix", ["", "x", "<", "12"])
def test_added_tokens_that_are_not_special_are_found_in_a_text_as_by_transformers(prefix, tmp_path):
    tokenizer = trained()
    tokenizer.add_tokens(["<speaker1>", "<speaker2>", "[x] ", "times"])
    folder = put(tmp_path / "theirs", content_of(tokenizer))
    ours = Tokenizer.load(folder)
    pieces = st.lists(st.sampled_from(["<speaker1>", "<speaker2>", "[x] ", "[x]", "times", " ", "a", "\n", "'s", "<"]))
    check_ids(ours, lambda text: tokenizer.encode(text).ids, pieces.map(lambda parts: prefix + "".join(parts)))
    check_ids(ours, by_transformers(folder), pieces.map("".join))
    assert ours.encode(f"{prefix} <speaker2>\n")[-2] == tokenizer.token_to_id("<speaker2>")
    ours.save(tmp_path / "ours")
    check_ids(Tokenizer.load(tmp_path / "ours"), by_transformers(tmp_path / "ours"), pieces.map("".join))
    assert ours.token_lengths[ours.encode("times<speaker1>")].tolist() == [5, 10]


def test_an_added_token_that_merges_produce_too_is_encoded_as_the_added_one(tmp_path):
    tokenizer = trained()
    merged = sorted(token for token in tokenizer.get_vocab() if token.isascii() and token.isalpha() and len(token) > 1)
    token = next(token for token in merged if token not in "<|endoftext|>")  # the end-of-text marker must not be split
    tokenizer.add_tokens([token])
    ours = Tokenizer.load(put(tmp_path, content_of(tokenizer)))
    assert ours.encode(token) == [tokenizer.token_to_id(token)]
    pieces = st.lists(st.sampled_from([token, token[0], token[1:], " ", "e", "1"])).map("".join)
    check_ids(ours, lambda text: tokenizer.encode(text).ids, pieces)


SPLITS = {
    "a sequence of one": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "GPT-2's expression": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(GPT2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}


def test_the_file_written_for_gpt2_is_recognized_by_its_hash_unless_other_files_add_tokens(tmp_path, monkeypatch):
    tokenizer = Tokenizer.named("gpt2")
    tokenizer.save(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "parse_tokenizer_json", lambda *_, **__: pytest.fail("the file was read"))
        assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "<pad>"}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": 50257}))
    assert Tokenizer.load(tmp_path).special_id("pad_token") == 50257


@pytest.mark.parametrize("split", SPLITS)
def test_other_spellings_of_gpt2s_split_are_read(split, tmp_path):
    tokenizer = trained()
    tokenizer.pre_tokenizer = SPLITS[split]
    ours = Tokenizer.load(put(tmp_path, content_of(tokenizer)))
    check_ids(ours, lambda text: tokenizer.encode(text).ids)


def test_the_oldest_files_name_no_type_of_model_and_write_merges_as_lines(tmp_path):
    content = content_of(trained(["<|endoftext|>"]))
    del content["model"]["type"], content["model"]["byte_fallback"], content["model"]["ignore_merges"]
    content["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    content["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
    ours = Tokenizer.load(put(tmp_path, content, {}))
    check_ids(ours, lambda text: theirs.encode(text).ids)
    assert ours.end_of_text == 0


@pytest.mark.parametrize("layout", OLD)
def test_a_pair_of_files_is_read(layout, tmp_path):
    put_old(tmp_path / "old", layout)
    put_old(tmp_path / "known", "transformers")
    ours = Tokenizer.load(tmp_path / "old")
    check_ids(ours, by_transformers(tmp_path / "known"))
    assert ours.end_of_text == 0


def test_tokens_in_added_tokens_json_of_old_transformers_are_read(tmp_path):
    put_old(tmp_path, "transformers", ["<s>", "</s>"])
    last = len(json.loads((tmp_path / "vocab.json").read_text()))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": last, "<speaker>": last + 1}))
    roles = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": "[PAD]"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(roles))
    ours = Tokenizer.load(tmp_path)
    assert ours.special == {"<s>": 0, "</s>": 1, "[PAD]": last}
    assert ours.end_of_text == 1
    check_ids(ours, by_transformers(tmp_path))
    check_ids(ours, by_transformers(tmp_path), st.lists(st.sampled_from(["<speaker>", " ", "a"])).map("".join))


def test_added_tokens_in_the_tokenizer_config_are_read(tmp_path):
    put_old(tmp_path, "transformers")
    last = len(json.loads((tmp_path / "vocab.json").read_text()))
    described = {"content": "[PAD]", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    config = {"added_tokens_decoder": {str(last): described}, "pad_token": "[PAD]", "additional_special_tokens": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).special == {"<|endoftext|>": 0, "[PAD]": last}


def test_the_end_of_text_token_comes_from_the_argument_the_tokenizer_config_or_the_model_config(tmp_path):
    content = content_of(trained())
    named = {name: content["model"]["vocab"][name] for name in SPECIAL}
    folder = put(tmp_path, content, {"eos_token": "<s>"})
    (folder / "config.json").write_text(json.dumps({"eos_token_id": named["<mask>"]}))
    assert Tokenizer.load(folder).end_of_text == named["<s>"]
    assert Tokenizer.load(folder, end_of_text="</s>").end_of_text == named["</s>"]
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')  # which has no id
    assert Tokenizer.load(folder).end_of_text == named["<mask>"]
    with pytest.raises(TokenizerError, match="must name its end-of-text token, but '<nothing>' has no id"):
        Tokenizer.load(folder, end_of_text="<nothing>")
    (folder / "config.json").write_text(json.dumps({"eos_token_id": content["model"]["vocab"]["a"]}))
    with pytest.raises(TokenizerError, match="must name its end-of-text token, but no eos_token has an id"):
        Tokenizer.load(folder)


def test_add_prefix_space_in_a_file_is_ignored_where_transformers_ignores_it(tmp_path):
    content = content_of(trained())
    content["pre_tokenizer"]["add_prefix_space"] = True
    folder = put(tmp_path, content, {"tokenizer_class": "GPT2TokenizerFast", "eos_token": "</s>"})
    check_ids(Tokenizer.load(folder), by_transformers(folder))


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("two ids", "its token '<new>' must have one id, but has "),
        ("dropout", "its dropout (0.1) must be null"),
        ("twice", "must belong to one token, not to b'a' and b'b'"),
    ],
)
def test_a_file_that_no_rules_can_be_made_of_is_refused_by_name(way, message, tmp_path):
    folder = put(tmp_path, *change(content_of(trained()), dict(PLAIN), way))
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(folder)
    assert message in str(caught.value)
    assert str(folder / "tokenizer.json") in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"model": 3}', b"[" * 10**5], ids=lambda c: c[:9]
)
@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json"])
def test_a_damaged_file_is_a_one_line_error(name, content, tmp_path):
    put_old(tmp_path, "transformers")
    if name.startswith(("added", "tokenizer_config")) and content.endswith(b"}"):  # which would be valid and empty
        content = b'{"eos_token": 3}'
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=r"cannot be used: (it|its|the id) ") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", r'{"\ud800": 258}'),
        ("tokenizer_config.json", r'{"eos_token": "<|endoftext|>", "chat_template": "\ud800"}'),
        ("tokenizer_config.json", r'{"eos_token": "<|endoftext|>", "of_the_future": "\uDFFF"}'),
        ("config.json", r'{"tokenizer_class": "\udc00"}'),
    ],
)
def test_half_of_a_surrogate_pair_is_a_one_line_error(name, content, tmp_path):
    put_old(tmp_path, "transformers")
    (tmp_path / name).write_text(content)
    with pytest.raises(
        TokenizerError, match=rf"{name} cannot be used: it is damaged \(it has half of a surrogate pair"
    ):
        Tokenizer.load(tmp_path)


def test_the_path_of_a_model_need_not_be_unicode(tmp_path):
    put_old(tmp_path, "transformers")
    (tmp_path / "config.json").write_text(r'{"_name_or_path": "mod\udce8les"}')
    (tmp_path / "tokenizer_config.json").write_text(r'{"name_or_path": "mod\udce8les", "chat_template": "x"}')
    assert Tokenizer.load(tmp_path).chat_template == "x"


def test_a_folder_without_a_tokenizer_is_a_one_line_error(tmp_path):
    with pytest.raises(TokenizerError, match=r"must hold a tokenizer\.json, or a vocab\.json and a merges\.txt"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(TokenizerError, match=r"it has no vocab\.json"):
        Tokenizer.load(tmp_path)


def test_an_added_token_as_transformers_describes_it_can_be_special_or_not():
    tokenizer = trained(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("<a>", normalized=False), AddedToken("<b>", special=True)])
    vocab = tokenizer.get_vocab()
    ours = Tokenizer.from_vocabulary(
        vocab,
        [tuple(merge) for merge in content_of(tokenizer)["model"]["merges"]],
        special={name: vocab[name] for name in ("<|endoftext|>", "<b>")},
        added={"<a>": vocab["<a>"]},
        end_of_text="<|endoftext|>",
    )
    assert ours.encode("x<a>y") == tokenizer.encode("x<a>y").ids
    assert vocab["<b>"] not in ours.encode("x<b>y")


def test_added_tokens_that_no_regular_expression_can_hold_are_a_one_line_error():
    names = [chr(0x10000 + i) * 256 for i in range(500)]
    with pytest.raises(TokenizerError, match=r"its 500 added tokens are too long: 512,000 bytes") as refused:
        Tokenizer(
            Vocabulary(
                {bytes([byte]): byte for byte in range(256)}, (), {"<|endoftext|>": 256},
                added={name: 257 + i for i, name in enumerate(names)},
            )
        )  # fmt: skip
    assert "\n" not in str(refused.value)


def test_a_text_ends_at_the_ids_of_generation_config_or_else_of_config(tmp_path):
    folder = put(tmp_path, content_of(trained()))
    end, mask, pad = (trained().token_to_id(name) for name in ("</s>", "<mask>", "<pad>"))
    assert Tokenizer.load(folder).end_ids == (end,)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [mask, pad]}))
    assert Tokenizer.load(folder).end_ids == (end, mask, pad)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    assert Tokenizer.load(folder).end_ids == (end, mask, pad)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [pad, end, -1, 10**30, True, "x", pad]}))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.end_ids == (end, pad)
    assert (tokenizer.end_of_text, tokenizer.with_end_ids([]).end_ids) == (end, (end,))
    assert tokenizer.fingerprint == tokenizer.with_end_ids([]).fingerprint
    (folder / "generation_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"generation_config\.json cannot be used"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "post_processor",
    [
        processors.TemplateProcessing(
            single="<s> <pad> $A </s>", special_tokens=[("<s>", 0), ("<pad>", 1), ("</s>", 2)]
        ),
        processors.BertProcessing(("</s>", 2), ("<s>", 0)),
        processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False),
        processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=True),
                processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
            ]
        ),
        None,
    ],
    ids=["template", "bert", "roberta", "sequence", "none"],
)
@pytest.mark.parametrize("add_bos", [None, True, False])
def test_a_prompt_begins_with_the_tokens_that_transformers_puts_before_it(post_processor, add_bos, tmp_path):
    library = trained(["<s>", "<pad>", "</s>", "<speaker1>", "<speaker12>"])
    library.post_processor = post_processor or processors.ByteLevel(trim_offsets=False)
    library.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    config |= {} if add_bos is None else {"add_bos_token": add_bos}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    ours.save(tmp_path / "saved")
    for text in ("Hello", " a <speaker1>b<speaker12>  <pad>c", "<s>", "<speaker<speaker1>"):
        expected = theirs.encode(text)
        if theirs.encode("a")[-1] == theirs.eos_token_id:
            del expected[-1]  # after the end of a text nothing can be generated
        for tokenizer in (ours, Tokenizer.load(tmp_path / "saved")):
            assert encode_prompt(tokenizer, text, special_tokens=True, token_healing=False).ids == expected
            plain = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
            assert tokenizer.encode(text) == plain
