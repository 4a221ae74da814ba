"""transformers opens a checkpoint and gives the same tokens and the same generated text."""

import json
from pathlib import Path

import pytest
import torch
from builders import distribution
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.generation.decoding import generate
from minigpt.generation.healing import encode_prompt
from minigpt.generation.sampling import Sampler
from minigpt.generation.streaming import generate_text
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer
from minigpt.tokenizer.vocabulary import GPT2_BYTES, bytes_to_unicode

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

TEXT = "It was the best of times, it's said.\n\n" * 9 + "naïve 中文字符 русский 😀 1234 \t x = {}\r\n" * 5
TRICKY = st.lists(
    st.sampled_from([*" \t\n\r\x0b\x1c\x85\xa0\u3000'!a1é中😀\u0301\0<|>.,?", "'s", "'LL", "the", "ſ", " n't"])
)
TEXTS = st.one_of(TRICKY.map("".join), st.text(), st.text(alphabet=sorted(set(TEXT))))


def imported() -> Tokenizer:
    """A tokenizer whose special tokens come first, whose ids have gaps, and whose tokens are in no order."""
    special = {"<s>": 0, "<pad>": 1, "</s>": 3}
    bytes_ = {bytes_to_unicode(bytes([byte])): 400 - id for id, byte in enumerate(GPT2_BYTES)}
    vocab = {**special, **bytes_, "th": 6, "the": 5, "Ġt": 401}
    return Tokenizer.from_vocabulary(
        vocab, ["t h", "th e", "Ġ t"], special=special, end_of_text="</s>", added={"<mark>": 450}
    )


MAKE = {
    "gpt2": lambda: Tokenizer.named("gpt2"),
    "bytes": lambda: Tokenizer.named("bytes"),
    "chars": lambda: Tokenizer.train([TEXT], "chars"),
    "bpe:350": lambda: Tokenizer.train([TEXT], "bpe:350"),
    "imported": imported,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint with every kind of tokenizer, its vocabulary padded."""
    folders = {}
    for kind, make in MAKE.items():
        tokenizer = make()
        torch.manual_seed(0)
        size = -(-tokenizer.vocab_size // 64) * 64
        model = GPT(GPTConfig(vocab_size=size, n_positions=64, n_embd=16, n_layer=2, n_head=2))
        with torch.no_grad():  # otherwise every token predicts itself
            model.position_embedding.weight.normal_(std=4)
            model.token_embedding.weight.normal_()
            model.token_embedding.weight[tokenizer.vocab_size :] = 0  # so that padding is never chosen
            model.token_embedding.weight[list(tokenizer.unused_ids)] = 0
        folders[kind] = save_checkpoint(tmp_path_factory.mktemp(kind.replace(":", "")) / "model", model, tokenizer)
    return folders


@pytest.mark.parametrize("kind", MAKE)
def test_auto_tokenizer_gives_the_same_ids_and_texts(saved: dict[str, Path], kind: str) -> None:
    ours = Tokenizer.load(saved[kind])
    theirs = transformers.AutoTokenizer.from_pretrained(saved[kind])
    ids = st.lists(st.integers(0, ours.vocab_size - 1))

    @settings(deadline=None, max_examples=60)
    @given(TEXTS, ids)
    @example(TEXT, [ours.end_of_text, 65, 66])
    @example("spaces , before . signs don 't go , n't they ?", [])
    def check(text: str, drawn: list[int]) -> None:
        encoded = theirs(text).input_ids
        assert encoded == ours.encode(text)
        assert theirs.decode(encoded) == text
        assert theirs.decode(drawn) == ours.decode(drawn)

    check()


@pytest.mark.parametrize("kind", MAKE)
def test_the_end_of_text_has_every_special_role_that_is_free(saved: dict[str, Path], kind: str) -> None:
    ours = Tokenizer.load(saved[kind])
    theirs = transformers.AutoTokenizer.from_pretrained(saved[kind])
    end = ours.end_of_text
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id, theirs.unk_token_id) == (end,) * 4
    assert theirs.decode([end, *ours.encode("a b")], skip_special_tokens=True) == "a b"
    batch = theirs(["a", "a b c"], padding=True, return_tensors="pt")
    # Padding is on the left, so that each text continues from its last token.
    assert batch.input_ids[0, -1].item() == ours.encode("a")[0]
    assert batch.attention_mask[0].tolist() == [0] * (batch.input_ids.shape[1] - 1) + [1]
    defaults = json.loads((saved[kind] / "generation_config.json").read_text())
    assert defaults == {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}


@pytest.mark.parametrize("kind", MAKE)
def test_transformers_generates_the_same_tokens_greedily(saved: dict[str, Path], kind: str) -> None:
    checkpoint = load_checkpoint(saved[kind], "cpu")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(saved[kind])
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved[kind])
    for prompt in ("It was", "中 the naïve"):
        given_ = tokenizer(prompt, return_tensors="pt")
        continued = theirs.generate(**given_, do_sample=False, max_new_tokens=20)[0]
        config = SamplingConfig(temperature=0.0, max_new_tokens=20, allow_invalid_utf8=True)
        text = "".join(generate_text(checkpoint.model, checkpoint.tokenizer, prompt, config))
        new = continued[given_.input_ids.shape[1] :].tolist()
        if new[-1] == checkpoint.tokenizer.end_of_text:
            new.pop()
        assert checkpoint.tokenizer.decode(new) == text
        assert len(set(new)) > 3


@pytest.mark.parametrize("kind", MAKE)
def test_a_pipeline_runs_without_a_warning(saved: dict[str, Path], kind: str, caplog: pytest.LogCaptureFixture) -> None:
    generator = transformers.pipeline("text-generation", model=str(saved[kind]))
    with caplog.at_level("WARNING"):
        (found,) = generator("It was", do_sample=False, max_new_tokens=12)
        several = generator(["It was", "the"], do_sample=False, max_new_tokens=12, batch_size=2)
    assert found["generated_text"].startswith("It was")
    assert len(found["generated_text"]) > len("It was")
    assert several[0][0]["generated_text"] == found["generated_text"]
    assert not [record for record in caplog.records if "pad" in record.getMessage().lower()]


def test_an_id_without_a_token_is_never_generated(saved: dict[str, Path]) -> None:
    checkpoint = load_checkpoint(saved["imported"], "cpu")
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    unused = torch.tensor(tokenizer.unused_ids)
    assert 402 in tokenizer.unused_ids
    with torch.no_grad():  # for every prompt, the most likely id has no token
        model.final_norm.weight.zero_()
        model.final_norm.bias.fill_(1.0)
        model.token_embedding.weight[402] = 9.0
    ids = torch.tensor([encode_prompt(tokenizer, "the").ids])
    (alone,) = generate(model, ids, SamplingConfig(temperature=0.0, max_new_tokens=1))
    assert alone.item() == 402
    for temperature in (0.0, 1.0):
        sampler = Sampler(SamplingConfig(temperature=temperature, seed=0), tokenizer)
        logits = model(ids)[:, -1, : tokenizer.vocab_size].detach()
        assert distribution(sampler, logits, ids, 0)[0, unused].sum() == 0
    config = SamplingConfig(temperature=0.0, max_new_tokens=5, stop=("\n",))
    assert "".join(generate_text(model, tokenizer, "the", config)) != ""
