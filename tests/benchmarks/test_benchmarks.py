"""Every benchmark, against the same protocol as a simple loop over transformers' GPT-2."""

import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import assert_restores_the_mode

from minigpt.benchmarks.loglikelihood import encode_apart, encode_pair, score_continuations
from minigpt.benchmarks.results import BenchmarkOptions, BenchmarkResult
from minigpt.benchmarks.suite import run_benchmark
from minigpt.config import GPTConfig
from minigpt.errors import DataError
from minigpt.evaluation.perplexity import evaluate
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

CONTEXT = 40  # some examples are longer, most are not
TOKENIZER = Tokenizer.named("bytes")
LETTERS = "ab e"


def letter_model() -> GPT:
    """Random weights under which a few letters are likely, so that some guesses are right and some are not."""
    torch.manual_seed(6)
    model = GPT(GPTConfig(vocab_size=257, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 1.0))
        likely = [ord(letter) for letter in LETTERS]
        unlikely = torch.ones(257, dtype=torch.bool)
        unlikely[likely] = False
        model.token_embedding.weight[unlikely] *= 0.05
    return model


MODEL = letter_model()


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_checkpoint(tmp_path_factory.mktemp("model") / "m", MODEL, TOKENIZER)
    return transformers.GPT2LMHeadModel.from_pretrained(folder).eval()


@torch.no_grad()
def log_probabilities(hf: Any, ids: Sequence[int]) -> torch.Tensor:
    return hf(torch.tensor([list(ids)])).logits[0].log_softmax(-1)  # (T, V)


def simple_score(hf: Any, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool, bool]:
    """Log-probability, all greedy, last greedy: as in lm-eval, one sequence at a time."""
    ids = [*context, *continuation]
    shown = ids[:-1][-CONTEXT:]
    table = log_probabilities(hf, shown)[-len(continuation) :]
    total = sum(table[i, token].double().item() for i, token in enumerate(continuation))
    greedy = [int(table[i].argmax()) == token for i, token in enumerate(continuation)]
    return total, all(greedy), greedy[-1]


def words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("abe", k=rng.randint(1, 3))) for _ in range(count))


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def values(result: BenchmarkResult) -> dict[str, float]:
    return {metric.name: metric.value for metric in result.metrics}


@pytest.fixture
def lambada_file(tmp_path: Path) -> Path:
    rng = random.Random(0)
    texts = [words(rng, rng.randint(2, 20)) + rng.choice([" a", " e", " b", " ab"]) for _ in range(120)]
    return write_jsonl(tmp_path / "lambada_test.jsonl", [{"text": text} for text in texts])


def test_lambada_equals_the_simple_loop(hf: Any, lambada_file: Path) -> None:
    scores = []
    for line in lambada_file.read_text().splitlines():
        text = json.loads(line)["text"]
        context, word = " ".join(text.split(" ")[:-1]), " " + text.split(" ")[-1]
        scores.append(simple_score(hf, TOKENIZER.encode(context), TOKENIZER.encode(word)))
    result = run_benchmark("lambada", MODEL, TOKENIZER, data=lambada_file)
    figures = values(result)
    assert figures["accuracy_last_word"] == sum(greedy for _, greedy, _ in scores) / 120
    assert figures["accuracy_last_token"] == sum(last for *_, last in scores) / 120
    assert 0 < figures["accuracy_last_word"] < figures["accuracy_last_token"] < 1
    loss = -sum(total for total, *_ in scores) / 120
    assert math.log(figures["perplexity_last_word"]) == pytest.approx(loss, abs=1e-5)
    cut = sum(len(json.loads(line)["text"]) - 1 > CONTEXT for line in lambada_file.read_text().splitlines())
    assert result.caveats == (
        "a file of 120 passages, the published one has 5,153",
        f"{cut} of 120 texts cut at the front to 40 tokens",
        "the text is all lower case, as in lm-eval's lambada_standard, not lambada_openai",
    )


def hellaswag_rows(seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for index in range(60):
        first, second = words(rng, rng.randint(1, 3)), words(rng, 1)
        endings = [words(rng, rng.randint(1, 4)) for _ in range(4)]
        if index % 5 == 0:
            endings[rng.randint(1, 3)] = endings[0]  # a tie, which the first index wins
        if index % 7 == 0:
            endings[1] = f"{endings[1]} [title] b [step] a"
        label = rng.randint(0, 3)
        rows.append(
            {"activity_label": "Ab", "ctx_a": first, "ctx_b": second, "ctx": f"{first} {second}",
             "endings": endings, "label": str(label) if index % 2 else label}
        )  # fmt: skip
    return rows


def cleaned(text: str) -> str:
    """lm-eval's preprocessing, restated."""
    text = text.strip()
    text = text.replace(" [title]", ". ")
    text = re.sub("\\[.*?\\]", "", text)
    return text.replace("  ", " ")


def test_hellaswag_equals_the_simple_loop_in_both_forms(hf: Any, tmp_path: Path) -> None:
    rows = hellaswag_rows()
    right: dict[str, list[bool]] = {}
    for row in rows:
        harness = cleaned(row["activity_label"] + ": " + row["ctx_a"] + " " + row["ctx_b"].capitalize())
        for form, context, endings in (
            ("", harness, [cleaned(ending) for ending in row["endings"]]),
            ("raw_", row["ctx"], row["endings"]),
        ):
            sums = [simple_score(hf, TOKENIZER.encode(context), TOKENIZER.encode(" " + end))[0] for end in endings]
            sizes = {"": [1] * 4, "_per_character": [len(end) for end in endings],
                     "_per_token": [len(TOKENIZER.encode(" " + end)) for end in endings]}  # fmt: skip
            for name, lengths in sizes.items():
                choice = int(np.argmax(np.array(sums) / np.array(lengths, dtype=float)))
                right.setdefault(f"{form}accuracy{name}", []).append(choice == int(row["label"]))
    result = run_benchmark("hellaswag", MODEL, TOKENIZER, data=write_jsonl(tmp_path / "h.jsonl", rows))
    assert result.caveats[0] == "a file of 60 questions, the published one has 10,042"
    figures = values(result)
    del right["raw_accuracy_per_character"]  # not part of any protocol
    assert {name: figures[name] for name in right} == {name: sum(hits) / 60 for name, hits in right.items()}
    assert len(set(figures.values())) > 3


def flat_model() -> GPT:
    """A model in which all tokens have exactly the same probability."""
    model = letter_model()
    with torch.no_grad():
        model.token_embedding.weight.zero_()
    return model


def test_of_tied_endings_the_first_is_chosen(tmp_path: Path) -> None:
    row = {"activity_label": "x", "ctx_a": "a b", "ctx_b": "c", "ctx": "a b c", "label": 1}
    rows = [{**row, "endings": ["aa", "bb", "cc", "dd"]}, {**row, "endings": ["aaa", "bb", "cc", "dd"]},
            {**row, "endings": ["aaa", "bb", "cc", "d"]}]  # fmt: skip
    result = run_benchmark("hellaswag", flat_model(), TOKENIZER, data=write_jsonl(tmp_path / "h.jsonl", rows))
    figures = values(result)
    assert (
        figures["accuracy"] == 1 / 3
    )  # four ties: the first; the shortest two tie: the first of them; one is shortest
    assert figures["raw_accuracy_per_token"] == 0  # four ties: the first each time


def test_of_equal_logits_the_first_token_is_the_most_likely() -> None:
    scores = score_continuations(flat_model(), [((5, 6), (0, 0)), ((5, 6), (0, 1)), ((5, 6), (1, 0))])
    assert [(each.is_greedy, each.is_last_greedy) for each in scores] == [(True, True), (False, False), (False, True)]
    assert scores[0].log_probability == scores[1].log_probability == pytest.approx(-2 * math.log(257))


def test_a_long_continuation_is_greedy_only_if_all_its_windows_are() -> None:
    zeros = (0,) * 60
    scores = score_continuations(flat_model(), [((5,), after) for after in ((1, *zeros), (*zeros, 1), (0, *zeros))])
    assert [(each.is_greedy, each.is_last_greedy) for each in scores] == [(False, True), (False, False), (True, True)]


def test_the_batch_size_does_not_change_the_results(lambada_file: Path, tmp_path: Path) -> None:
    files = {"lambada": lambada_file, "hellaswag": write_jsonl(tmp_path / "h.jsonl", hellaswag_rows())}
    for name, path in files.items():
        found = [
            values(run_benchmark(name, MODEL, TOKENIZER, BenchmarkOptions(batch_size=size), data=path))
            for size in (None, 1, 3, 64)
        ]
        for other in found[1:]:
            assert other == pytest.approx(found[0], rel=1e-5)


def test_a_continuation_longer_than_the_context_is_read_in_windows(hf: Any) -> None:
    """Each token is scored once, with at least half the context before it; one that fits is scored as in lm-eval."""
    rng = random.Random(3)
    ids = [rng.choice([ord(letter) for letter in LETTERS]) for _ in range(150)]
    for before, after in ((10, 100), (60, 41), (1, 40), (5, 36), (100, 40), (3, 149 - 3)):
        context, continuation = ids[:before], ids[before : before + after]
        if after <= CONTEXT:
            expected, greedy, last = simple_score(hf, context, continuation)
        else:
            expected, hits = 0.0, []
            for start in range(before, before + after, CONTEXT // 2):
                end = min(start + CONTEXT // 2, before + after)
                total, all_greedy, last = simple_score(hf, ids[:start], ids[start:end])
                expected += total
                hits.append(all_greedy)
            greedy = all(hits)
        (got,) = score_continuations(MODEL, [(tuple(context), tuple(continuation))])
        assert got.log_probability == pytest.approx(expected, abs=1e-4)
        assert (got.is_greedy, got.is_last_greedy) == (greedy, last)
    cuts = {(37, 4): False, (38, 4): True, (10, 100): False, (60, 100): True}
    for (before, after), cut in cuts.items():
        assert (
            score_continuations(MODEL, [(tuple(ids[:before]), tuple(ids[before : before + after]))])[0].is_truncated
            == cut
        )


@pytest.mark.parametrize("name", ["wikitext2", "wikitext103", "ptb"])
@pytest.mark.parametrize("stride", [40, 20, 7])
def test_perplexities_equal_the_simple_loop(hf: Any, tmp_path: Path, name: str, stride: int) -> None:
    text = (" \n = A b = \n \n" if name != "ptb" else "") + " a be e <unk> ab a \n b ea b \n" * 4
    path = tmp_path / "text"
    path.write_text(text)
    ids = [TOKENIZER.end_of_text, *TOKENIZER.encode(text)]
    total, scored_to, start = 0.0, 0, 0
    while scored_to < len(ids) - 1:
        table = log_probabilities(hf, ids[start : start + CONTEXT])
        for position in range(len(table)):
            if scored_to < start + position + 1 < len(ids):
                scored_to = start + position + 1
                total -= table[position, ids[scored_to]].double().item()
        start += stride
    result = run_benchmark(name, MODEL, TOKENIZER, BenchmarkOptions(stride=stride), data=path)
    figures = values(result)
    n_words = len(text.split())
    n_ends = text.count("\n")
    assert math.log(figures["perplexity_token"]) == pytest.approx(total / (len(ids) - 1), abs=1e-5)
    assert math.log(figures["perplexity_word"]) == pytest.approx(total / (n_words + n_ends), rel=1e-5)
    assert math.log(figures["perplexity_word_without_ends"]) == pytest.approx(total / n_words, rel=1e-5)
    assert figures["bits_per_byte"] == pytest.approx(total / math.log(2) / len(text.encode()), rel=1e-5)
    assert ("the text with <unk>, not the raw text" in result.caveats) == (name != "ptb")


def cbt_text(sentences: list[str], question: str, answer: str, candidates: list[str]) -> str:
    lines = [*sentences, f"{question}\t{answer}\t\t{'|'.join(candidates)}"]
    return "".join(f"{index} {line}\n" for index, line in enumerate(lines, 1))


def cbt_block(rng: random.Random) -> tuple[list[str], str, list[str]]:
    """Twenty sentences, a question with a blank, and ten candidates."""
    candidates = rng.sample(["a", "b", "e", "ab", "ba", "ae", "ea", "eb", "be", "aa"], 10)
    return [f"{words(rng, 1)} ." for _ in range(20)], f"{words(rng, 1)} , XXXXX {words(rng, 2)} .", candidates


@pytest.mark.parametrize("detokenize", [False, True])
def test_cbt_equals_the_simple_loop_over_candidates_with_the_rest_of_the_sentence(
    hf: Any, tmp_path: Path, detokenize: bool
) -> None:
    expected, of_the_word_alone = {}, {}
    for kind in ("CN", "NE"):
        rng = random.Random(kind)
        right = alone = 0
        blocks = []
        for number in range(12):
            sentences, question, candidates = cbt_block(rng)
            shown = " ".join([*sentences, question])
            if detokenize:
                shown = shown.replace(" .", ".").replace(" ,", ",")
            before, after = shown.split(" XXXXX")
            context = TOKENIZER.encode(before)
            whole = [simple_score(hf, context, TOKENIZER.encode(f" {word}{after}"))[0] for word in candidates]
            short = [simple_score(hf, context, TOKENIZER.encode(f" {word}"))[0] for word in candidates]
            choice = candidates[int(np.argmax(whole))]
            answer = choice if number % 3 else rng.choice(candidates)  # so that some answers are correct
            right += choice == answer
            alone += candidates[int(np.argmax(short))] == answer
            blocks.append(cbt_text(sentences, question, answer, candidates))
        (tmp_path / f"cbtest_{kind}_valid_2000ex.txt").write_text("\n".join(blocks))
        expected[f"accuracy_{kind}"], of_the_word_alone[f"accuracy_{kind}"] = right / 12, alone / 12
    result = run_benchmark("cbt", MODEL, TOKENIZER, BenchmarkOptions(detokenize=detokenize), data=tmp_path)
    assert values(result) == expected
    assert expected != of_the_word_alone  # so the rest of the sentence makes a difference
    assert result.examples == 24


@pytest.mark.gpu
def test_the_device_does_not_change_the_results(lambada_file: Path) -> None:
    tokens = np.arange(500) * 7 % 257
    on_gpu = letter_model().to("cuda")
    assert evaluate(on_gpu, tokens, stride=9).loss == pytest.approx(evaluate(MODEL, tokens, stride=9).loss, abs=1e-4)
    figures = [values(run_benchmark("lambada", model, TOKENIZER, data=lambada_file)) for model in (MODEL, on_gpu)]
    assert figures[1] == pytest.approx(figures[0], rel=1e-3)


def test_white_space_before_a_continuation_belongs_to_it_and_an_empty_context_is_an_end_of_text() -> None:
    assert encode_pair(TOKENIZER, "ab ", "c") == (tuple(b"ab"), tuple(b" c"))
    assert encode_pair(TOKENIZER, " ", "c") == ((TOKENIZER.end_of_text,), tuple(b" c"))
    assert encode_apart(TOKENIZER, "", " c") == ((TOKENIZER.end_of_text,), tuple(b" c"))


def test_a_continuation_without_tokens_is_an_error() -> None:
    for encode in (encode_pair, encode_apart):
        with pytest.raises(DataError, match=r"the continuation '' has no token of the tokenizer \(bytes\), so"):
            encode(TOKENIZER, "ab", "")


def test_a_limit_takes_the_first_examples_and_is_a_caveat(lambada_file: Path, tmp_path: Path) -> None:
    result = run_benchmark("lambada", MODEL, TOKENIZER, BenchmarkOptions(limit=7), data=lambada_file)
    first = tmp_path / "first.jsonl"
    first.write_text("".join(lambada_file.read_text().splitlines(keepends=True)[:7]))
    assert values(result) == values(run_benchmark("lambada", MODEL, TOKENIZER, data=first))
    assert result.caveats[0] == "the first 7 passages only"
    for limit in (120, 1000):
        everything = run_benchmark("lambada", MODEL, TOKENIZER, BenchmarkOptions(limit=limit), data=lambada_file)
        assert not any("only" in caveat for caveat in everything.caveats)


@pytest.mark.parametrize(("limit", "caveats"), [(None, ()), (2, ()), (1, ("the first 1 lines only",))])
def test_a_limit_is_a_caveat_only_if_the_text_has_more_lines(
    tmp_path: Path, limit: int | None, caveats: tuple[str, ...]
) -> None:
    text = tmp_path / "ptb.test.txt"
    text.write_text(" a be e \n ab a \n")
    assert run_benchmark("ptb", MODEL, TOKENIZER, BenchmarkOptions(limit=limit), data=text).caveats == caveats


@pytest.mark.parametrize(("limit", "caveats"), [(3, ()), (2, ("the first 2 questions of each file only",))])
def test_a_limit_is_a_caveat_of_cbt_only_if_a_file_has_more_questions(
    tmp_path: Path, limit: int, caveats: tuple[str, ...]
) -> None:
    for kind, count in (("CN", 3), ("NE", 2)):
        rng = random.Random(kind)
        questions = [cbt_block(rng) for _ in range(count)]
        blocks = [cbt_text(before, blank, words[0], words) for before, blank, words in questions]
        (tmp_path / f"cbtest_{kind}_valid_2000ex.txt").write_text("\n".join(blocks))
    result = run_benchmark("cbt", MODEL, TOKENIZER, BenchmarkOptions(limit=limit), data=tmp_path)
    assert tuple(caveat for caveat in result.caveats if "cut at" not in caveat) == caveats


def test_shared_contexts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    real = GPT.features

    def counted(self: GPT, ids: torch.Tensor, cache: Any = None) -> torch.Tensor:
        nonlocal read
        read += ids.numel()
        return real(self, ids, cache)

    monkeypatch.setattr(GPT, "features", counted)
    context = tuple(range(97, 97 + 30))
    scores = score_continuations(MODEL, [(context, (token, token)) for token in (0, 1, 2, 3, 0, 3)])
    assert read == 29 + 4 * 2
    assert scores[0] == scores[4]  # equal pairs are scored once, so they tie exactly


def test_scoring_restores_the_training_mode_after_an_error() -> None:
    assert_restores_the_mode(lambda model: score_continuations(model, [((1,), (2,))]))
