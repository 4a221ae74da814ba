"""CTranslate2 opens exports with every tokenizer and gives the model's logits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.config import GPTConfig
from minigpt.exporters.export import export_model
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from the converter and its imports
]
TEXT = "“It’s naïve — really”, he said… 日本語 1234 🙂\n"


def save(folder: Path, name: str | Tokenizer, *, padding: int = 0, dtype: torch.dtype | None = None) -> Path:
    if isinstance(name, Tokenizer):
        tokenizer = name
    else:
        tokenizer = Tokenizer.named(name) if name in ("gpt2", "bytes") else Tokenizer.train([TEXT * 8], name)
    torch.manual_seed(0)
    size = tokenizer.vocab_size + padding
    model = GPT(GPTConfig(vocab_size=size, n_positions=64, n_embd=32, n_layer=2, n_head=4, layer_norm_epsilon=1e-4))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return save_checkpoint(folder / "model", model, tokenizer, dtype=dtype)


@pytest.mark.parametrize("name", ["gpt2", "bytes", "chars", "bpe:400"])
def test_the_converted_model_gives_the_models_logits(tmp_path: Path, name: str) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    transformers = pytest.importorskip("transformers")
    folder = save(tmp_path, name)
    done = export_model(folder, "ctranslate2", output=tmp_path / "out")
    (found,) = done.parity
    assert found.difference < 1e-4
    assert found.greedy == found.of == 16

    checkpoint = load_checkpoint(folder, "cpu")
    prompt = checkpoint.tokenizer.encode("He said: “日本")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.encode("He said: “日本") == prompt
    generator = ctranslate2.Generator(str(tmp_path / "out"), device="cpu")
    start = [tokenizer.convert_ids_to_tokens(prompt)]
    result = generator.generate_batch(start, max_length=12, sampling_topk=1, include_prompt_in_result=False)
    ids = list(prompt)
    while len(ids) < len(prompt) + len(result[0].sequences_ids[0]):
        ids.append(int(checkpoint.model(torch.tensor([ids]))[0, -1].argmax()))
    assert result[0].sequences_ids[0] == ids[len(prompt) :]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "int8"])
def test_smaller_dtypes_give_smaller_files_and_close_logits(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    folder = save(tmp_path, "bytes")
    whole = export_model(folder, "ctranslate2", output=tmp_path / "f32")
    done = export_model(folder, "ctranslate2", dtype=dtype, output=tmp_path / dtype)
    assert done.size < 0.7 * whole.size
    assert 0 < done.parity[0].deviations < {"f16": 0.01, "bf16": 0.06, "int8": 0.25}[dtype]


def test_embeddings_without_a_token_are_dropped_after_the_last_token_and_named_before_it(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    *plain, _ = Tokenizer.named("bytes").token_strings
    vocab = {token: id for id, token in enumerate(plain)}
    gaps = Tokenizer.from_vocabulary(vocab, [], special={"<end>": 260}, end_of_text="<end>")
    done = export_model(save(tmp_path, gaps, padding=59), "ctranslate2", output=tmp_path / "out")
    assert done.notes == (
        "ids 261 to 319 have no token and are never generated",
        "the export has only the 261 ids that have a token",
    )
    assert done.parity[0].difference < 1e-4
    names = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert names == [*plain, "[PAD256]", "[PAD257]", "[PAD258]", "[PAD259]", "<end>"]


def test_end_of_text_stands_for_special_tokens_that_a_tokenizer_does_not_have(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = save(tmp_path, "bytes")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}))
    export_model(folder, "ctranslate2", output=tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {written[role] for role in ("bos_token", "eos_token", "unk_token")} == {"<|endoftext|>"}


def test_a_tokenizer_of_other_rules_keeps_the_names_of_its_tokens(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "once", "upon", "a", "time", "##s", "##ing"]
    (tmp_path / "of").mkdir()
    (tmp_path / "of" / "vocab.txt").write_text("\n".join(words) + "\n")
    export_model(save(tmp_path, Tokenizer.load(tmp_path / "of")), "ctranslate2", output=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "vocabulary.json").read_text()) == words
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["unk_token"] == "[UNK]"
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("Once upon times") == ["once", "upon", "time", "##s"]
