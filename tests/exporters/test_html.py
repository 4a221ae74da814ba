"""Exported pages: their code in node gives the tokens, the logits and the texts of minigpt itself."""

import dataclasses
import json
import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model, random_model

from minigpt.config import GPTConfig, SamplingConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.exporters import export as exporting
from minigpt.exporters import runners
from minigpt.exporters.export import export_model
from minigpt.exporters.html import build_wasm
from minigpt.exporters.html.page import PageText, check_page, read_page, write_page
from minigpt.generation.decoding import Decoder
from minigpt.generation.healing import encode_prompt
from minigpt.generation.sampling import Sampler, uniform
from minigpt.model.gpt import GPT
from minigpt.native import compiled
from minigpt.native.engine import NativeEngine
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_decode = pytest.mark.skipif(compiled.library() is None, reason="the C code is not compiled")

CORPUS = "“It’s naïve — really”, he said… 日本語 と 日曜日, 1234½ Привет 🙂🙃 ▁▂▃\t\n" * 8
TEXTS = [
    "Hello world, it's me!\n\n  don't  \t x",
    "“curly” — dash… é ü ñ ▁▂▃ 日本語 🙂",
    "\u00a0\u2003 a\0b\x7f\r\n\x85 \u1680\u200b\ufeff\u2028",
    "<|endoftext|> <|end",
    "ab'll 123 ½ ² ٣ e\u0301 \u0300 👨‍👩‍👧 🇩🇪 'RE's",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " ",
    "",
]
NODE_SETTINGS = {"count": 40, "temperature": 0, "topK": None, "topP": 1, "minP": 0, "repetitionPenalty": 1, "seed": "7"}


def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.named(name) if name in ("gpt2", "bytes") else Tokenizer.train([CORPUS], name)


def page_of(folder: Path, model: GPT, tokenizer: Tokenizer, **text: str) -> Path:
    path = folder / "page.html"
    with path.open("wb") as file:
        write_page(file, model, tokenizer, PageText(**{"title": "A model", **text}))
    return path


@pytest.fixture(scope="module")
def small() -> GPT:
    """Widths that are no multiples of a panel or a block, and a context that a text soon exceeds."""
    return random_model(vocab_size=257, n_positions=24, n_embd=84, n_head=4, std=0.15)


@pytest.fixture(scope="module")
def varied() -> GPT:
    """A model whose texts vary."""
    return new_model(scale=10, vocab_size=257, n_positions=24, n_embd=84, n_head=4)


@needs_node
@pytest.mark.parametrize("name", ["bytes", "chars", "bpe:400", "gpt2"])
def test_the_tokenizer_in_the_page_gives_the_same_ids_and_texts(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name)
    model = new_model(vocab_size=tokenizer.vocab_size, n_embd=4, n_layer=1)
    _, answer = runners.page_in_node(page_of(tmp_path, model, tokenizer), model.config, ids=[0], texts=TEXTS)
    assert answer["textIds"] == [tokenizer.encode(text) for text in TEXTS]
    assert answer["decoded"] == TEXTS


def fuzzed(count: int) -> list[str]:
    """Texts of 0 to 24 characters: words of the corpus, of all scripts, white space, controls, and any code points."""
    generator = random.Random(20)
    kinds = [
        lambda: generator.choice(CORPUS.split()),
        lambda: chr(
            generator.choice([generator.randrange(128), generator.randrange(0x3000), generator.randrange(0xFFFF)])
        ),
        lambda: chr(generator.randrange(0x110000)),
        lambda: generator.choice([" ", "  ", "\n", "\r\n", "\t", "\x85", "\xa0", "\u2028", "\u3000", "\ufeff", "\x1c"]),
        lambda: generator.choice(
            ["'s", "'ll", "'S", "''", "don't", "<|endoftext|>", "🇩🇪", "👨‍👩‍👧", "e\u0301", "½", "٣", "12"]
        ),
    ]
    texts = ("".join(generator.choice(kinds)() for _ in range(generator.randrange(9))) for _ in range(count))
    return [text.encode("utf-8", "replace").decode() for text in texts]


@needs_node
@pytest.mark.parametrize("name", ["bytes", "chars", "bpe:400", "gpt2"])
def test_the_tokenizer_in_the_page_gives_the_same_ids_for_fuzzed_texts(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name)
    texts = fuzzed(3000)
    assert len(set(texts)) > 2400
    model = new_model(vocab_size=tokenizer.vocab_size, n_embd=4, n_layer=1)
    _, answer = runners.page_in_node(page_of(tmp_path, model, tokenizer), model.config, ids=[0], texts=texts)
    different = [text for text, ids in zip(texts, answer["textIds"], strict=True) if ids != tokenizer.encode(text)]
    assert different == []


@needs_node
def test_added_tokens_are_found_in_a_text_and_special_ones_are_not(tmp_path: Path) -> None:
    plain = Tokenizer.named("bytes")
    vocab = dict(zip(plain.token_strings, range(257), strict=True))
    tokenizer = Tokenizer.from_vocabulary(
        vocab,
        [],
        special={"<|endoftext|>": 256},
        end_of_text="<|endoftext|>",
        added={"<b.*>": 257, "[x]": 258, "<e-mail/>": 259},
    )
    texts = ["a<b.*>[x]<bb>", "[x]", "<|endoftext|>[x", "an <e-mail/>!"]
    model = new_model(vocab_size=260, n_embd=4, n_layer=1)
    _, answer = runners.page_in_node(page_of(tmp_path, model, tokenizer), model.config, ids=[0], texts=texts)
    assert answer["textIds"] == [tokenizer.encode(text) for text in texts]
    assert answer["textIds"][0] == [97, 257, 258, *b"<bb>"]


@needs_node
@needs_decode
@pytest.mark.parametrize("arithmetic", ["simd", "plain"])
def test_logits_in_node_are_those_of_the_int8_engine(arithmetic: str, small: GPT, tmp_path: Path) -> None:
    ids = [(7 * i + 3) % 257 for i in range(24)]
    engine = NativeEngine(small, "int8")
    expected = torch.cat([engine.start([ids[:1]]), engine.read(torch.tensor([ids[1:]]))[0]])  # (T, V)
    path = page_of(tmp_path, small, Tokenizer.named("bytes"))
    logits, answer = runners.page_in_node(path, small.config, ids=ids, only=arithmetic)
    assert answer["arithmetic"] == arithmetic
    if arithmetic == "simd":
        assert torch.equal(logits, expected)
    errors = (logits - expected).abs().amax(dim=1) / expected.std()  # (T,)
    assert errors[0] < 1e-4
    # JavaScript adds in float64, so that an activation may round to another integer, which all later tokens see.
    assert errors.max() < 0.1


@needs_node
@pytest.mark.parametrize("arithmetic", ["simd", "plain"])
def test_attention_weights_in_node_are_those_of_pytorch(arithmetic: str, varied: GPT, tmp_path: Path) -> None:
    ids = [(7 * i + 3) % 257 for i in range(24)]
    path = page_of(tmp_path, varied, Tokenizer.named("bytes"))
    _, answer = runners.page_in_node(path, varied.config, ids=ids, only=arithmetic)
    weights = torch.tensor(answer["attention"]).view(varied.config.n_layer, varied.config.n_head, len(ids))
    assert torch.allclose(weights.sum(dim=2), torch.ones(weights.shape[:2]), atol=1e-5)
    page, _ = read_page(path)
    with torch.no_grad():
        expected = torch.cat([layer[:, :, -1] for layer in page.attention_weights(torch.tensor([ids]))])  # (L, H, T)
    assert expected.amax(dim=2).std() > 0.1
    # The page rounds the activations to int8 before each product, PyTorch computes in float32: layer by layer the
    # difference grows.
    errors = (weights - expected).abs().amax(dim=(1, 2))  # (L,)
    assert errors[0] < 0.02
    assert errors.max() < 0.05


@needs_node
@needs_decode
def test_texts_are_those_of_generate_with_int8_greedy_and_with_a_seed_beyond_the_context(
    varied: GPT, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.named("bytes")
    settings: list[tuple[dict[str, Any], SamplingConfig]] = [
        ({}, SamplingConfig(temperature=0)),
        ({"temperature": 0.7, "repetitionPenalty": 1.3},
         SamplingConfig(temperature=0.7, top_p=1, repetition_penalty=1.3)),
        ({"temperature": 0.8, "topP": 0.95}, SamplingConfig(temperature=0.8, top_p=0.95)),
        ({"temperature": 1.5, "topK": 5}, SamplingConfig(temperature=1.5, top_p=1, top_k=5)),
        ({"temperature": 1, "minP": 0.1, "topP": 0.9, "topK": 50},
         SamplingConfig(temperature=1, min_p=0.1, top_p=0.9, top_k=50)),
    ]  # fmt: skip
    asked = [{"prompt": "é!", "settings": NODE_SETTINGS | own} for own, _ in settings]
    path = page_of(tmp_path, varied, tokenizer)
    _, answer = runners.page_in_node(path, varied.config, ids=[0], only="simd", write=asked)
    for (own, config), written in zip(settings, answer["written"], strict=True):
        decoder = Decoder(
            NativeEngine(varied, "int8"),
            [tokenizer.encode("é!")],
            Sampler(dataclasses.replace(config, seed=7), tokenizer),
        )
        expected = [decoder.advance()[0][0].id for _ in range(40)]
        assert len(set(expected)) > 2
        assert written == expected, own


@needs_node
@needs_decode
def test_a_page_never_draws_unseen_tokens(varied: GPT, tmp_path: Path) -> None:
    seen = b"the quick brown fox\n"
    tokenizer = Tokenizer.named("bytes").with_suppressed_ids(set(range(256)) - set(seen))
    asked = [{"prompt": "the", "settings": NODE_SETTINGS | {"temperature": 1.5}}]
    path = page_of(tmp_path, varied, tokenizer)
    _, answer = runners.page_in_node(path, varied.config, ids=[0], only="simd", write=asked)
    decoder = Decoder(
        NativeEngine(varied, "int8"),
        [tokenizer.encode("the")],
        Sampler(SamplingConfig(temperature=1.5, top_p=1, seed=7), tokenizer),
    )
    assert answer["written"] == [[decoder.advance()[0][0].id for _ in range(40)]]
    assert set(answer["written"][0]) <= {*seen, tokenizer.end_of_text}
    assert len(set(answer["written"][0])) > 5


@needs_node
@needs_decode
@pytest.mark.parametrize("name", ["bytes", "bpe:400", "gpt2", "with a prefix"])
def test_texts_are_whole_characters_and_the_end_of_a_prompt_is_healed(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe:400" if name == "with a prefix" else name)
    if name == "with a prefix":
        tokenizer = Tokenizer(replace(tokenizer.byte_level("a test"), prefix=(tokenizer.end_of_text,)))
    model = new_model(scale=10, vocab_size=tokenizer.vocab_size, n_positions=32, n_embd=8, n_head=2)
    prompts = ["日本語 🙂", "", "naïve ", "it'", "x\n\n", "end \u00a0", "é'  ", "日本\u3000"]
    asked = [
        {"prompt": prompt, "settings": NODE_SETTINGS | {"temperature": temperature, "count": 50}}
        for prompt in prompts
        for temperature in (0, 1)
    ]
    _, answer = runners.page_in_node(
        page_of(tmp_path, model, tokenizer), model.config, ids=[0], only="simd", write=asked
    )
    assert answer["healed"] == [len(encode_prompt(tokenizer, question["prompt"]).end.encode()) for question in asked]
    for question, written in zip(asked, answer["written"], strict=True):
        config = SamplingConfig(temperature=question["settings"]["temperature"], top_p=1, seed=7, max_new_tokens=50)
        sampler = Sampler(config, tokenizer)
        prompt = encode_prompt(tokenizer, question["prompt"])
        decoder = Decoder(NativeEngine(model, "int8"), [prompt], sampler)
        assert written == [decoder.advance()[0][0].id for _ in range(50)], question


@needs_node
@needs_decode
def test_a_page_has_every_end_of_a_text_and_does_not_take_back_what_one_could_spell(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe:400")
    model = new_model(scale=10, vocab_size=tokenizer.vocab_size, n_positions=32, n_embd=8, n_head=2)
    asked = [{"prompt": "a\n", "settings": NODE_SETTINGS | {"count": 8}}]
    written = []
    for each in (tokenizer, tokenizer.with_end_ids(tokenizer.encode("\n"))):
        page = page_of(tmp_path, model, each)
        assert read_page(page)[1]["tokenizer"]["ends"] == list(each.end_ids)
        written += runners.page_in_node(page, model.config, ids=[0], only="simd", write=asked)[1]["written"]
        prompt = encode_prompt(each, "a\n")
        sampler = Sampler(SamplingConfig(temperature=0), each)
        decoder = Decoder(NativeEngine(model, "int8"), [prompt], sampler)
        assert written[-1] == [decoder.advance()[0][0].id for _ in range(8)]
    assert written[0] != written[1]


def run_sampler(expression: str) -> Any:
    """The value of an expression in JavaScript that uses the page's sampler."""
    script = (runners.resources.files("minigpt.exporters.html") / "assets" / "sampler.js").read_text(encoding="utf-8")
    command = ["node", "-e", f"{script}\nconsole.log(JSON.stringify({expression}))"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@needs_node
def test_random_numbers_depend_on_the_seed_and_the_step_as_in_python() -> None:
    numbers = [(0, 0), (7, 3), (2**63 - 1, 199), (2**32, 10**6)]
    calls = ", ".join(f'sampling.uniform("{seed}", 0, {step})' for seed, step in numbers)
    assert run_sampler(f"[{calls}]") == [uniform(seed, 0, step) for seed, step in numbers]


@needs_node
@pytest.mark.parametrize(
    ("weights", "settings"),
    [
        ([1.0, *[0.4] * 40], {"topK": 3, "topP": 0.3}),  # 40 tokens tie with the last one of top-k
        ([1, 0.5, 0.2, *[0.09] * 47, 0.01], {"topK": 50, "topP": 0.8, "minP": 0.1}),
    ],
)
def test_truncations_one_after_the_other_keep_the_same_tokens_as_in_python(
    weights: list[float], settings: dict[str, float]
) -> None:
    logits = torch.tensor([weights]).log()
    exponentials = """(values, highest) => {
        for (let id = 0; id < values.length; id++) values[id] = Math.exp(values[id] - highest);
        return values.reduce((sum, value) => sum + value, 0);
    }"""
    given = NODE_SETTINGS | {"temperature": 1, "seed": 7} | settings
    call = f"sampling.choose({{exponentials: {exponentials}}}, logits, [], step, {json.dumps(given)})"
    steps = "Array.from({length: 200}, (_, step) => step)"
    tokens = run_sampler(
        f"((logits) => {steps}.map((step) => {call}))(Float32Array.of({str(logits[0].tolist())[1:-1]}))"
    )
    names = {"topK": "top_k", "topP": "top_p", "minP": "min_p"}
    config = SamplingConfig(temperature=1, seed=7, **{names[name]: value for name, value in settings.items()})
    sampler, history = Sampler(config), torch.empty(1, 0, dtype=torch.int64)
    assert tokens == [int(sampler.choose(logits, history, step)) for step in range(200)]
    assert len(set(tokens)) > 20 if len(weights) == 41 else set(tokens) == {0, 1, 2}


def test_a_page_read_back_has_the_models_weights_within_the_rounding_of_int8(small: GPT, tmp_path: Path) -> None:
    found, header = read_page(page_of(tmp_path, small, Tokenizer.named("bytes")))
    assert header["config"]["n_embd"] == 84
    for name, weight in small.state_dict().items():
        read = found.state_dict()[name]
        if weight.dim() == 2:
            step = weight.abs().amax(dim=1, keepdim=True) / 127
            assert ((read - weight).abs() <= 0.501 * step).all(), name
        else:
            assert torch.equal(read, weight), name


def test_hostile_titles_notes_and_prompts_cannot_leave_their_place(small: GPT, tmp_path: Path) -> None:
    hostile = "</title></script><script>alert(1)</script><!--\u2028'\"&\0$weights"
    path = page_of(tmp_path, small, Tokenizer.named("bytes"), title=hostile, note=hostile, prompt=hostile)
    content = path.read_text(encoding="utf-8")
    assert content.count("alert(1)") == 4  # the title element, and three strings of the data
    assert "<script>alert" not in content
    data = content.split('id="data"')[1].split(">", 1)[1].split("</script>")[0]
    assert [json.loads(data)[key] for key in ("title", "note", "prompt")] == [hostile] * 3
    read_page(path)


def test_a_title_that_is_not_utf8_has_a_question_mark(small: GPT, tmp_path: Path) -> None:
    path = page_of(tmp_path, small, Tokenizer.named("bytes"), title="caf\udce9")
    assert "<title>caf?</title>" in path.read_text(encoding="utf-8")
    read_page(path)


def test_a_page_loads_nothing_and_runs_only_its_own_scripts(small: GPT, tmp_path: Path) -> None:
    content = page_of(tmp_path, small, Tokenizer.named("bytes")).read_text(encoding="utf-8")
    policy = content.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe-inline" not in policy
    assert "connect-src" not in policy
    namespaces = content.replace("http://www.w3.org/${space}", "")  # are names, not addresses
    assert "http" not in namespaces.replace("http-equiv", "")


def test_the_export_is_checked_and_says_by_what(small: GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_checkpoint(tmp_path / "one", small, Tokenizer.named("bytes"))
    sizes: list[int] = []
    done = export_model(source, "html", output=tmp_path / "one.html", announce=sizes.append)
    assert done.size == (tmp_path / "one.html").stat().st_size
    assert sizes[0] == pytest.approx(done.size, rel=0.05)
    assert done.parity[0].by == ("node" if shutil.which("node") else "minigpt")
    monkeypatch.setattr(runners.shutil, "which", lambda _: None)
    done = export_model(source, "html", output=tmp_path / "one.html", force=True)
    assert [each.by for each in done.parity] == ["minigpt"]
    assert done.notes == ("the page's own code was not checked: node is not installed",)


@pytest.mark.skipif(os.name == "nt", reason="the script needs a shell")
def test_a_node_that_is_too_old_is_none(small: GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_checkpoint(tmp_path / "one", small, Tokenizer.named("bytes"))
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho 'ReferenceError: DecompressionStream is not defined' >&2\nexit 1\n")
    node.chmod(0o755)
    monkeypatch.setattr(runners.shutil, "which", lambda _: str(node))
    done = export_model(source, "html", output=tmp_path / "one.html")
    assert [each.by for each in done.parity] == ["minigpt"]
    assert done.notes == (
        f"the page's own code was not checked: {node} does not run or is older than version 18, which a page needs",
    )


@needs_node
def test_a_page_whose_logits_differ_is_not_kept(small: GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_checkpoint(tmp_path / "one", small, Tokenizer.named("bytes"))
    other = random_model(small.config, seed=1, std=0.15)
    monkeypatch.setattr(
        exporting, "write_page", lambda file, _, tokenizer, text: write_page(file, other, tokenizer, text)
    )
    with pytest.raises(CheckpointError, match="not kept: in node a logit differs"):
        export_model(source, "html", output=tmp_path / "one.html")
    assert not (tmp_path / "one.html").exists()


def test_large_pages_need_consent_and_very_large_ones_are_refused() -> None:
    gpt2, tokenizer = GPTConfig(), Tokenizer.named("bytes")
    with pytest.raises(ConfigError, match=r"about \d+ MB, which phones .* --yes"):
        check_page(gpt2, tokenizer, large=False)
    assert 150_000_000 < check_page(gpt2, tokenizer, large=True) < 200_000_000
    with pytest.raises(ConfigError, match="at most 500 MB; export to gguf"):
        check_page(GPTConfig(n_embd=1280, n_layer=36, n_head=20), tokenizer, large=True)
    with pytest.raises(ConfigError, match="gelu_new"):
        check_page(dataclasses.replace(gpt2, activation_function="gelu"), tokenizer, large=True)


def test_the_modules_are_what_the_compiler_makes_of_the_source(tmp_path: Path) -> None:
    if obstacle := build_wasm.why_no_compiler():
        pytest.skip(obstacle)
    for name, features in build_wasm.MODULES.items():
        build_wasm.compile_module(tmp_path / name, features)
        assert (tmp_path / name).read_bytes() == (build_wasm.HERE / name).read_bytes(), f"{name}: run `make wasm`"
