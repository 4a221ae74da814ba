"""Files of tokenizers as the tokenizers library writes them, and changes of their rules."""

import json

import tokenizers
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

TEXT = (
    "It was the best of times, it was the worst of times; it's said.\n\n" * 9
    + "naïve 中文字符 русский 😀 1234 \t x = {}\r\n" * 5
)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TRICKY = st.lists(st.sampled_from([*" \t\n\r\x0b\x1c\x85\xa0\u3000'!a1é中😀\u0301\0<|>", "'s", "'LL", "the", "ſ", "²"]))
TEXTS = st.one_of(TRICKY.map("".join), st.text(), st.text(alphabet=sorted(set(TEXT))))
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}


def trained(special=SPECIAL):
    """A tokenizer trained with Hugging Face's library: special tokens come first, then the bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer


def content_of(tokenizer):
    return json.loads(tokenizer.to_str())


def put(folder, content, config=PLAIN):
    """A folder with the files of a Hugging Face repository."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    return folder


OLD = {
    "transformers": ("vocab.json", "merges.txt"),
    "openai": ("encoder.json", "vocab.bpe"),
}


def put_old(folder, layout, special=("<|endoftext|>",)):
    """The vocabulary and the merges in two files, as in repositories without a tokenizer.json."""
    model = content_of(trained(list(special)))["model"]
    vocabulary, merges = OLD[layout]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / vocabulary).write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"]), ""]
    (folder / merges).write_text("\r\n".join(lines) if layout == "openai" else "\n".join(lines), newline="")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    return model


def change(content, config, way):
    model, vocab = content["model"], content["model"]["vocab"]
    added = {"id": 500, "content": "<new>", "single_word": False, "lstrip": False, "rstrip": False, "special": False}
    added |= {"normalized": False, "id": len(vocab)}
    match way:
        case "type":
            model["type"] = "WordPiece"
        case "prefix":
            content["pre_tokenizer"]["add_prefix_space"] = True
        case "prefix by default":
            content["pre_tokenizer"] = {"type": "ByteLevel"}
        case "prefix in the config":
            config["add_prefix_space"] = True
        case "bos":
            config["add_bos_token"] = True
        case "digits":
            steps = [{"type": "Digits", "individual_digits": True}, content["pre_tokenizer"]]
            content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        case "no split":
            content["pre_tokenizer"]["use_regex"] = False
        case "other expression":
            content["pre_tokenizer"]["use_regex"] = False
            split = {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Isolated", "invert": False}
            content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
        case "other behaviour":
            content["pre_tokenizer"]["use_regex"] = False
            split = {"type": "Split", "pattern": {"Regex": GPT2_SPLIT}, "behavior": "MergedWithNext", "invert": False}
            content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
        case "normalizer":
            content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
        case "decoder":
            content["decoder"] = {"type": "WordPiece"}
        case "template":
            single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
            special = {"<s>": {"id": "<s>", "ids": [vocab["<s>"]], "tokens": ["<s>"]}}
            content["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single}
            content["post_processor"]["special_tokens"] = special
        case "stripping":
            content["added_tokens"].append(added | {"lstrip": True})
        case "two ids":
            content["added_tokens"].append(added)
            config["added_tokens_decoder"] = {str(len(vocab) + 1): added}
        case "overlap":
            content["added_tokens"] += [added, added | {"id": len(vocab) + 1, "content": "new>>"}]
        case "dropout":
            model["dropout"] = 0.1
        case "twice":
            vocab["a"] = vocab["b"]
        case "alphabet":
            vocab["中"] = 600
        case "no byte":
            del vocab["a"]
        case "ordinary":
            ordinary = (token for token in vocab if token.isalpha() and token.isascii() and len(token) > 1)
            config["pad_token"] = next(ordinary)
        case "character":
            config["pad_token"] = "!"
        case "order":
            model["merges"].reverse()
        case "ignore":
            model["ignore_merges"], vocab["zzz"] = True, 600
        case "characters":
            split = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
            steps = [split, content["pre_tokenizer"] | {"use_regex": False}]
            content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    return content, config
