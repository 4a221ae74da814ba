"""Models whose tokenizer is not GPT-2's, or that have none: import, use, training and export by the command line."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import new_model
from click.testing import Result

import minigpt
from minigpt.config import GPTConfig
from minigpt.data.corpus import Corpus
from minigpt.storage.huggingface import to_huggingface
from minigpt.storage.tensors import save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import bytes_to_unicode

Run = Callable[..., Result]
VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"今天气很好，我们去公园散步。",
    "the",
    "fox",
    "##es",
    "over",
]
CHINESE = "今天天气很好，我们去公园散步。"
TRAINING = ["--steps", "2", "--batch-size", "2", "--context-length", "8", "--device", "cpu", "--dtype", "float32",
            "--no-report", "--sample-every", "0"]  # fmt: skip


def put_model(folder: Path, size: int, **config: object) -> None:
    """A folder as of the hub, with random weights."""
    folder.mkdir()
    shape = GPTConfig(vocab_size=size, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    save_tensors(folder / "model.safetensors", to_huggingface(new_model(shape)), {"format": "pt"})
    values = {"model_type": "gpt2", "vocab_size": size, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    (folder / "config.json").write_text(json.dumps(values | config))


@pytest.fixture
def chinese(here: Path) -> Path:
    put_model(here / "hub", len(VOCABULARY))
    (here / "hub" / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (here / "hub" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (here / "zh.txt").write_text(CHINESE * 40, encoding="utf-8")
    return here


def test_an_import_says_once_what_a_tokenizer_loses(chinese: Path, run: Run) -> None:
    imported = run("load-gpt2", "--from", "hub", "--name", "zh")
    assert imported.exit_code == 0
    assert f"wordpiece:{len(VOCABULARY)}" in imported.stdout + imported.stderr
    (note,) = [line for line in imported.stderr.splitlines() if "run by the tokenizers library" in line]
    for lost in ("upper case becomes lower case", "line breaks and runs of spaces are lost", "becomes [UNK]", "[CLS]"):
        assert lost in note
    (chinese / "hub" / "vocab.txt").unlink()
    generated = run("generate", "今天", "--model", "zh", "--max-new-tokens", "5", "--seed", "1", "--json")
    assert "run by" not in generated.stderr
    answer = json.loads(generated.stdout)
    tokenizer = Tokenizer.load("checkpoints/zh")
    assert answer["text"] == tokenizer.decoder(continues=True).feed(answer["ids"][0]) + "".join(
        tokenizer.token_bytes(id).decode() for id in answer["ids"][1:]
    )


def test_such_a_model_is_evaluated_inspected_and_fine_tuned(chinese: Path, run: Run) -> None:
    (chinese / "mixed.txt").write_text(f"{CHINESE} quick fox", encoding="utf-8")
    evaluated = run("evaluate", "hub", "mixed.txt", "--json")
    assert json.loads(evaluated.stdout)["bits_per_byte"] > 0
    assert [each["tokens"] for each in json.loads(evaluated.stdout)["documents"]] == [
        json.loads(evaluated.stdout)["tokens"]
    ]
    assert "1 of " in evaluated.stderr
    assert "tokens are unknown and spell nothing" in evaluated.stderr
    assert run("inspect", "hub", "今天 the foxes").exit_code == 0
    blank = run("inspect", "hub", "   ")
    assert blank.exit_code == 1
    assert blank.stderr.splitlines()[-1] == "minigpt: the text has no token of this tokenizer; give another text"
    assert run("train", "zh.txt", "--from", "hub", "--name", "whole", *TRAINING).exit_code == 0
    assert run("train", "zh.txt", "--from", "hub", "--lora", "--name", "adapter", *TRAINING).exit_code == 0
    assert (chinese / "checkpoints" / "whole" / "vocab.txt").exists()
    held_out = json.loads(run("evaluate", "whole", "--held-out", "--json").stdout)
    assert [each["tokens"] for each in held_out["documents"]] == [held_out["tokens"]]
    remembered = json.loads(run("generate", "今", "--model", "whole", "--memorization", "--json").stdout)[
        "memorization"
    ]
    assert remembered["indexed_bytes"] == remembered["training_bytes"] > 0
    assert run("generate", "", "--model", "whole", "--max-new-tokens", "3").exit_code == 0
    assert run("merge", "adapter").exit_code == 0
    assert run("generate", "今", "--model", "adapter-merged", "--max-new-tokens", "3").exit_code == 0
    refused = run("train", "zh.txt", "--from", "hub", "--bpe-dropout", "0.1", "--name", "third", *TRAINING)
    assert refused.exit_code == 1
    assert "--bpe-dropout (0.1) needs" in refused.stderr


def test_a_benchmark_says_what_the_tokenizer_loses(chinese: Path, run: Run) -> None:
    (chinese / "passages.jsonl").write_text('{"text": "over the Fox"}')
    evaluated = run("evaluate", "hub", "lambada", "--data", "passages.jsonl", "--json")
    (benchmark,) = json.loads(evaluated.stdout)["benchmarks"]
    (lost,) = [caveat for caveat in benchmark["caveats"] if "tokenizer" in caveat]
    assert lost.startswith(f"the tokenizer (wordpiece:{len(VOCABULARY)}) loses part of the text: upper case becomes ")
    assert not any(each["same_protocol"] for each in benchmark["published"])


def test_a_word_without_tokens_is_one_sentence(chinese: Path, run: Run) -> None:
    (chinese / "passages.jsonl").write_text('{"text": "over the fox \\u0007"}')
    refused = run("evaluate", "hub", "lambada", "--data", "passages.jsonl")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-1] == (
        f"minigpt: the continuation ' \\x07' has no token of the tokenizer (wordpiece:{len(VOCABULARY)}), so it has no "
        "probability; evaluate the model on another benchmark"
    )


@pytest.mark.parametrize(("target", "what"), [("gguf", "GGUF"), ("html", "the page")])
def test_an_export_that_needs_gpt2s_tokenizer_is_refused(chinese: Path, run: Run, target: str, what: str) -> None:
    pytest.importorskip("gguf")
    refused = run("export", "hub", "--to", target)
    assert refused.exit_code == 1
    assert f"{what} needs a byte-level tokenizer like GPT-2's, but this model's is wordpiece" in refused.stderr
    assert "its vocab.txt is of another kind" in refused.stderr
    assert {path.name for path in chinese.iterdir()} <= {"hub", "zh.txt", "fox.txt", "corpus.txt", "cache"}


def test_a_refused_export_names_the_rule_that_differs(here: Path, run: Run) -> None:
    pytest.importorskip("gguf")
    put_model(here / "hub", 257)
    Tokenizer.named("bytes").save(here / "hub")
    file = here / "hub" / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content | {"normalizer": {"type": "NFC"}}))
    refused = run("export", "hub", "--to", "gguf")
    assert refused.exit_code == 1
    assert "this model's is bpe:257: its normalizer (NFC) must be null" in refused.stderr


def test_a_model_without_a_tokenizer_takes_ids(here: Path, run: Run) -> None:
    put_model(here / "hub", 40, eos_token_id=7)
    refused = run("load-gpt2", "--from", "hub", "--name", "bare")
    assert refused.exit_code == 1
    assert "--tokenizer none" in refused.stderr
    imported = run("load-gpt2", "--from", "hub", "--name", "bare", "--tokenizer", "none")
    assert imported.exit_code == 0
    assert "texts are token ids with spaces between them, and the id 7 ends a text" in imported.stderr
    generated = run("generate", "1 2 3", "--model", "bare", "--max-new-tokens", "4", "--seed", "3", "--json")
    answer = json.loads(generated.stdout)
    assert answer["text"] == "".join(f" {id}" for id in answer["ids"] if id != 7)
    said = run("generate", "Once upon a time", "--model", "bare")
    assert said.exit_code == 1
    assert said.stderr.strip().endswith(
        "this model has no tokenizer, so its text must be token ids from 0 to 39 with spaces between them,"
        " such as '15 7 201', not 'Once'"
    )
    (here / "ids.txt").write_text("1 2 3 4 5 6 8 9 10 11\n" * 30)
    assert run("train", "ids.txt", "--from", "bare", "--name", "tuned", *TRAINING).exit_code == 0
    assert Tokenizer.load("checkpoints/tuned").fingerprint == Tokenizer.load("checkpoints/bare").fingerprint
    assert "no tokenizer" in run("train", "fox.txt", "--from", "bare", "--name", "text", *TRAINING).stderr
    (here / "two.txt").write_text("1 2 3 4<|endoftext|>5 6")
    evaluated = json.loads(run("evaluate", "bare", "two.txt", "--json").stdout)
    assert [document["tokens"] for document in evaluated["documents"]] == [5, 3]
    (here / "end.txt").write_text("1 2 7 3 4<|endoftext|>5 6")
    for arguments in (
        ("evaluate", "bare", "end.txt"),
        ("train", "end.txt", "--from", "bare", "--name", "end", *TRAINING),
    ):
        ended = run(*arguments)
        assert ended.exit_code == 1
        assert "its id 7 ends a text, so a text must not contain 7; write <|endoftext|> between" in ended.stderr
    unknown = run("load-gpt2", "--from", "hub", "--tokenizer", "gpt2")
    assert unknown.exit_code == 1
    assert "--tokenizer ('gpt2') must be none" in unknown.stderr


def test_several_ids_end_the_texts_of_a_model_without_a_tokenizer(here: Path, run: Run) -> None:
    put_model(here / "hub", 40, eos_token_id=[7, 9, 40])
    imported = run("load-gpt2", "--from", "hub", "--name", "bare", "--tokenizer", "none")
    assert imported.exit_code == 0
    assert "and each of the ids 7, 9 ends a text" in imported.stderr
    for end in (7, 9):
        options = ("--model", "bare", "--max-new-tokens", "4", "--logit-bias", f"#{end}=100", "--seed", "1", "--json")
        assert json.loads(run("generate", "1 2 3", *options).stdout)["ids"] == [end]
    (here / "ids.txt").write_text("1 2 3 4 5 6 8 10 11\n" * 30)
    assert run("train", "ids.txt", "--from", "bare", "--name", "tuned", *TRAINING).exit_code == 0
    assert Tokenizer.load("checkpoints/tuned").end_ids == (7, 9)


def test_a_model_without_a_tokenizer_is_exported_to_onnx_and_checked(here: Path, run: Run) -> None:
    pytest.importorskip("onnxruntime")
    put_model(here / "hub", 40, eos_token_id=7)
    run("load-gpt2", "--from", "hub", "--name", "bare", "--tokenizer", "none")
    exported = run("export", "bare", "--to", "onnx")
    assert exported.exit_code == 0, exported.stderr
    assert "checked in onnxruntime" in exported.stdout + exported.stderr
    assert "generate(torch.tensor([[0]])" in exported.stdout
    assert "AutoTokenizer" not in exported.stdout
    found = json.loads(run("export", "bare", "--to", "onnx", "--force", "--json").stdout)["parity"][0]
    assert found["greedy"] == found["of"] == 16
    assert Tokenizer.load("bare-onnx").fingerprint == Tokenizer.load("checkpoints/bare").fingerprint


@pytest.mark.parametrize(("target", "reason"), [
    ("gguf", "a GGUF file holds the text of every token"),
    ("ctranslate2", "CTranslate2 takes a prompt as the texts of its tokens"),
    ("html", "the page shows text"),
])  # fmt: skip
def test_an_export_that_needs_a_tokenizer_is_refused_for_a_model_without_one(
    here: Path, run: Run, target: str, reason: str
) -> None:
    put_model(here / "hub", 40, eos_token_id=7)
    run("load-gpt2", "--from", "hub", "--name", "bare", "--tokenizer", "none")
    refused = run("export", "bare", "--to", target)
    assert refused.exit_code == 1
    folder = Path("checkpoints") / "bare"
    expected = f"{folder} has no tokenizer, so it cannot be exported to {target}: {reason}; --to onnx needs none"
    assert refused.stderr.strip().endswith(expected)


def test_play_continues_a_chinese_text_and_saves_it(chinese: Path, run: Run) -> None:
    run("load-gpt2", "--from", "hub", "--name", "zh")
    played = run(
        "play", "zh", "--max-new-tokens", "6", "--seed", "1", "--device", "cpu",
        stdin="今天\n/retry\n天气\n/undo\n/save out.txt\n",
    )  # fmt: skip
    assert played.exit_code == 0
    text = (chinese / "out.txt").read_text(encoding="utf-8")
    assert text.startswith("今天")
    assert "天气" not in text
    shown = played.stdout.replace("> ", "").splitlines()
    assert text.removeprefix("今天") == shown[1]  # the second answer, after /retry


def test_play_takes_ids_and_forgets_a_line_that_is_none(here: Path, run: Run) -> None:
    put_model(here / "hub", 40)
    run("load-gpt2", "--from", "hub", "--name", "bare", "--tokenizer", "none")
    played = run(
        "play", "bare", "--max-new-tokens", "3", "--min-new-tokens", "3", "--device", "cpu",
        stdin="hello\n3 4\n/show\nx y\n5\n/show\n",
    )  # fmt: skip
    assert played.exit_code == 0
    assert "Type token ids, such as 3 4, and press Enter" in " ".join(played.stderr.split())
    assert played.stderr.count("this model has no tokenizer, so its text must be token ids") == 2
    *_, first, second = played.stdout.replace("> ", "").strip().splitlines()
    assert first.startswith("3 4 ")
    assert second.startswith("5 ")


@pytest.fixture
def speakers(here: Path) -> Path:
    """A GPT-2 as transformers saves it: special tokens for speakers, and one that begins every text."""
    names = ["<s>", "</s>", "<speaker1>", "<speaker2>"]
    byte_level = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)}
    special = {name: 256 + number for number, name in enumerate(names)}
    Tokenizer.from_vocabulary(byte_level, [], special=special, end_of_text="</s>", prefix=[256]).save(here / "hub")
    put_model(here / "made", 260)
    for file in (here / "made").iterdir():
        file.rename(here / "hub" / file.name)
    return here


def test_special_tokens_are_text_in_a_prompt_unless_asked_for(speakers: Path, run: Run) -> None:
    (speakers / "ids.jsonl").write_text(f'[256, 258, {ord("H")}]\n{{"prompt": [256, 258, {ord("H")}]}}\n')
    imported = run("load-gpt2", "--from", "hub", "--name", "talk")
    assert "note: <s> begins every prompt, as in transformers" in imported.stderr
    greedy = ["--model", "talk", "--temperature", "0", "--max-new-tokens", "8", "--json"]
    as_tokens = run("generate", "<speaker1>H", "--special-tokens", *greedy)
    as_ids = run("generate", "--prompt-file", "ids.jsonl", *greedy)
    as_text = run("generate", "<speaker1>H", *greedy)
    tokens, text = (json.loads(each.stdout) for each in (as_tokens, as_text))
    both = [json.loads(line) for line in as_ids.stdout.splitlines()]
    assert [each["ids"] for each in both] == [tokens["ids"]] * 2
    assert both[0]["prompt"] == "<s><speaker1>H"
    assert text["ids"] != tokens["ids"]
    assert "the prompt contains <speaker1>, which the model reads as text" in as_text.stderr
    assert "--special-tokens" in as_text.stderr
    assert "special" not in as_tokens.stderr + as_ids.stderr
    model = minigpt.load("talk")
    sampling = {"temperature": 0.0, "max_new_tokens": 8}
    assert model.generate("<speaker1>H", special_tokens=True, **sampling) == tokens["text"]
    assert model.generate([256, 258, ord("H")], **sampling) == tokens["text"]
    (speakers / "ids.jsonl").write_text("[260]\n")
    refused = run("generate", "--prompt-file", "ids.jsonl", *greedy)
    assert refused.exit_code == 1
    assert refused.stderr.splitlines()[-1].endswith("the prompt's id 260 must be a token id from 0 to 259")
    inspected = json.loads(run("inspect", "talk", "<speaker1>H", "--special-tokens", "--json").stdout)
    assert inspected["ids"] == [256, 258, ord("H")]


def test_a_training_text_may_name_special_tokens(speakers: Path, run: Run) -> None:
    (speakers / "talk.txt").write_text("<speaker1>Hello!<speaker2>Who is there?\n" * 30)
    (speakers / "other.txt").write_text("<speaker1>Who?<speaker2>Me.\n" * 3)
    train = ["train", "talk.txt", "--from", "hub", *TRAINING]
    plain = run(*train, "--name", "plain")
    assert "the text contains <speaker1>, <speaker2>, which the tokenizer reads as text" in plain.stderr
    trained = run(*train, "--name", "named", "--special-tokens")
    assert trained.exit_code == 0, trained.stderr
    assert "reads as text" not in trained.stderr
    corpus = Corpus.load(json.loads(Path("checkpoints/named/training.json").read_text())["corpus"]["path"])
    one = [258, *b"Hello!", 259, *b"Who is there?\n"]
    assert corpus.train[: len(one)].tolist() == one
    tokens = {}
    for name, arguments in {"hub": ["--special-tokens"], "named": [], "hub as text": []}.items():
        evaluated = run("evaluate", name.split()[0], "other.txt", *arguments, "--json")
        tokens[name] = json.loads(evaluated.stdout)["tokens"]
    assert tokens["hub"] == tokens["named"] == tokens["hub as text"] - 3 * 2 * len("<speaker1")
    held_out = run("evaluate", "named", "--held-out", "--json")
    assert held_out.exit_code == 0, held_out.stderr
    assert run(*train[:2], "--resume", "--name", "named", "--steps", "3").exit_code == 0
    refused = run("train", "talk.txt", "--special-tokens", "--name", "new", *TRAINING)
    assert refused.exit_code == 1
    assert "--special-tokens needs a model to fine-tune (--from)" in refused.stderr


def test_characters_that_a_nanogpt_lacks_are_named_and_cost_no_end_of_text(here: Path, run: Run) -> None:
    shape = GPTConfig(vocab_size=5, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    weights = {
        f"transformer.{name.removeprefix('transformer.')}": tensor.T.clone()
        if tensor.dim() == 2 and not name.endswith(("wte.weight", "wpe.weight"))
        else tensor.clone()
        for name, tensor in to_huggingface(new_model(shape)).items()
    }
    arguments = {"vocab_size": 5, "block_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "bias": True}
    (here / "nano").mkdir()
    torch.save({"model": weights, "model_args": arguments, "config": {}}, here / "nano" / "ckpt.pt")
    meta = {"itos": dict(enumerate("abc\n日"))}
    (here / "nano" / "meta.pkl").write_bytes(pickle.dumps(meta))
    generated = run("generate", "a2é日é", "--model", "nano", "--max-new-tokens", "2")
    assert generated.stderr.count("the model's vocabulary has no token for '2', 'é'; it reads each of them") == 1
    assert "no token for" not in run("generate", "a日", "--model", "nano", "--max-new-tokens", "2").stderr
    played = run("play", "nano", "--max-new-tokens", "2", stdin="abc\nxyz\n/quit\n")
    assert played.stderr.count("no token for 'x', 'y', 'z'") == 1
    (here / "known.txt").write_text("abc\n日cab", encoding="utf-8")
    evaluated = run("evaluate", "nano", "known.txt", "--json")
    assert "the model never predicts the end of a text" in evaluated.stderr
    assert json.loads(evaluated.stdout)["loss"] < 5
    (here / "unknown.txt").write_text("abé", encoding="utf-8")
    assert "has no token for 'é'; it never predicts" in run("evaluate", "nano", "unknown.txt").stderr
    (here / "long.txt").write_text(400 * "abé日 ", encoding="utf-8")
    trained = run("train", "long.txt", "--from", "nano", "--steps", "2", "--device", "cpu", "--no-report")
    assert trained.exit_code == 0, trained.stderr
    assert "has no token for 'é', ' ', which are in the text" in " ".join(trained.stderr.split())
