"""What runs on CUDA, on a pretended device without a GPU: its values, its rules, and how often the CPU waits for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import bytes_ending_in, new_run, random_model
from pretended_cuda import CudaTensor, PretendedGPU, pretended_cuda, reason_to_skip

from minigpt import Sampler, SamplingConfig, generate
from minigpt.config import GPTConfig, TrainConfig
from minigpt.cuda import graphs as cuda_graphs
from minigpt.cuda.graphs import GraphEngine
from minigpt.cuda.slots import CudaSlots
from minigpt.data.corpus import Corpus
from minigpt.errors import ConfigError, GenerationError
from minigpt.generation import sampling
from minigpt.generation.decoding import Decoder
from minigpt.generation.engine import Engine
from minigpt.generation.resolve_engine import resolve_engine
from minigpt.lora.fine_tuning import apply_fine_tuning
from minigpt.model.gpt import GPT
from minigpt.server.batching.batch import Batch
from minigpt.server.batching.requests import Event, GenerationRequest
from minigpt.slots.resolve_slots import resolve_slots
from minigpt.slots.slots import Slots
from minigpt.storage import tensors
from minigpt.training.events import Saved, Step
from minigpt.training.loop import train
from minigpt.training.step import zero_if

reason = reason_to_skip()
pytestmark = pytest.mark.skipif(reason is not None, reason=reason or "")

READS_A_RESULT = {"training/step.py results": 1}  # of the step before, while the GPU computes this one
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-3}  # of a loss


@pytest.fixture
def gpu() -> Iterator[PretendedGPU]:
    with pretended_cuda() as device:
        yield device


# Training

TEXT = "the quick brown fox jumps over the lazy dog; " * 60
CHAT = [
    {"messages": [{"role": "user", "content": f"hello fox {n}"}, {"role": "assistant", "content": f"a lazy dog {n}"}]}
    for n in range(80)
]
MODEL = {"vocab_size": 257, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "Muon, bfloat16, dropout": {"optimizer": "muon", "dtype": "bfloat16"},
    "AdamW, float32": {"optimizer": "adamw", "dtype": "float32"},
    "a chat log, the assistant's targets": {"optimizer": "adamw", "dtype": "bfloat16", "loss_on": "assistant"},
    "sampled softmax": {"optimizer": "adamw", "dtype": "bfloat16", "sampled_softmax": 64},
    "LoRA on int8 matrices": {"optimizer": "adamw", "dtype": "bfloat16", "lora": True, "base_dtype": "int8"},
}


@pytest.fixture
def text(tmp_path: Path) -> Corpus:
    (tmp_path / "fox.txt").write_text(TEXT)
    return Corpus.build([tmp_path / "fox.txt"], "bytes", cache=tmp_path / "cache")


@pytest.fixture
def chat(tmp_path: Path) -> Corpus:
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, CHAT)))
    return Corpus.build([tmp_path / "chat.jsonl"], "bytes", cache=tmp_path / "cache")


def settings(device: str, **changes: Any) -> TrainConfig:
    config = TrainConfig(
        steps=5, batch_size=6, micro_batch_size=4, warmup_steps=2, learning_rate=1e-2, eval_every=100, eval_tokens=200,
        sample_every=0, device=device, compile="off", schedule="constant",
    )  # fmt: skip
    return config.replace(**changes)


def new_gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(**MODEL, dropout=dropout))


def losses(model: GPT, corpus: Corpus, config: TrainConfig, *arguments: Any, **options: Any) -> list[float]:
    return [event.loss for event in train(model, corpus, config, *arguments, **options) if isinstance(event, Step)]


@pytest.mark.parametrize("name", SETTINGS)
def test_training_on_cuda_gives_the_losses_of_the_cpu_and_waits_for_no_step(
    name: str, text: Corpus, chat: Corpus
) -> None:
    changes = SETTINGS[name]
    corpus = chat if "loss_on" in changes else text

    def model(config: TrainConfig) -> GPT:
        found = new_gpt(0.1 if "dropout" in name else 0.0)
        apply_fine_tuning(found, config)
        return found

    on_cpu = settings("cpu", **changes | {"dtype": "float32"})
    expected = losses(model(on_cpu), corpus, on_cpu)
    with pretended_cuda() as gpu:
        config = settings("cuda", **changes)
        trained = model(config)
        found, waits = [], []
        for event in train(trained, corpus, config):
            if isinstance(event, Step):
                found.append(event.loss)
                waits.append(dict(gpu.waits))
                products = {dtype for dtype, count in gpu.products.items() if count}
                if len(found) < config.steps:  # the last result is read after the evaluation
                    assert products == {getattr(torch, changes["dtype"])}
            gpu.clear()
        assert all(isinstance(weight.data, CudaTensor) for weight in trained.parameters())
    assert waits[1:-1] == [READS_A_RESULT] * 3
    assert torch.get_float32_matmul_precision() == "highest"  # as in evaluation and generation
    assert found == pytest.approx(expected, abs=TOLERANCES[changes["dtype"]])


def test_a_loss_spike_is_skipped_without_a_wait_and_without_a_kernel_for_each_gradient(gpu: PretendedGPU) -> None:
    gradients = [torch.full((2, 3), torch.nan, device="cuda") for _ in range(50)]
    skip = torch.zeros((), device="cuda") == 0
    gpu.clear()
    zero_if(skip, gradients)
    assert (gpu.waits.total(), gpu.launches["_foreach_mul_"]) == (0, 1)
    assert gpu.launches.total() < 5
    assert not torch.stack(gradients).any()


@pytest.mark.parametrize(("group", "n_waits"), [(1 << 20, 1), (1, 113)])  # bytes; 28 weights x 4, and 1
def test_saving_waits_once_for_a_group_of_tensors_and_once_to_check_them(
    group: int, n_waits: int, text: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_GROUP", group)
    with pretended_cuda() as gpu:
        run = new_run(tmp_path / "run", new_gpt(), text.tokenizer)
        waits = []
        for event in train(new_gpt(), text, settings("cuda", optimizer="adamw", dtype="float32"), run):
            if isinstance(event, Saved):
                waits.append({name: count for name, count in gpu.waits.items() if "step.py" not in name})
            gpu.clear()
    assert waits[-1] == {"training/checkpointing.py _check_finite": 1, "storage/tensors.py _on_cpu": n_waits}


def test_a_run_on_cuda_is_resumed_as_if_it_had_not_stopped(text: Corpus, tmp_path: Path) -> None:
    changes = {"optimizer": "muon", "dtype": "float32", "steps": 6}  # and AdamW for the rest
    expected = losses(new_gpt(), text, settings("cpu", **changes))
    run = new_run(tmp_path / "run", new_gpt(), text.tokenizer)
    with pretended_cuda():
        config = settings("cuda", **changes)
        first = losses(new_gpt(), text, config.replace(steps=3), run)
        rest = losses(new_gpt(), text, config, run, resume=True)
    assert first + rest == pytest.approx(expected, abs=TOLERANCES["float32"])
    resumed_on_the_cpu = losses(new_gpt(), text, settings("cpu", **changes | {"steps": 8}), run, resume=True)
    assert len(resumed_on_the_cpu) == 2


# Generation

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampling": {"temperature": 0.8},
    "truncated": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "typical": {"temperature": 0.8, "typical_p": 0.9},
    "penalties and bans": {
        "repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2, "no_repeat_ngram_size": 3,
        "logit_bias": ("#5=1",), "top_p": 1.0,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "first_k"), [*((name, 640) for name in SAMPLING), ("truncated", 8), ("typical", 8)])
def test_generation_on_cuda_gives_the_tokens_of_the_cpu(
    name: str, first_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "_SHORTEST_SPAN", 16)
    config = SamplingConfig(max_new_tokens=40, seed=1, **SAMPLING[name])  # the window moves
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = [step.tolist() for step in generate(Engine(random_model(**MODEL)), ids, config)]
    monkeypatch.setattr(sampling, "_FIRST_K", first_k)
    with pretended_cuda():
        engine = resolve_engine(random_model(**MODEL).to("cuda"))
        assert isinstance(engine, GraphEngine)
        found = [step.tolist() for step in generate(engine, ids.to("cuda"), config)]
    assert found == expected


def test_recorded_steps_read_the_cache_that_the_engine_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "_SHORTEST_SPAN", 8)

    def logits(device: str) -> list[torch.Tensor]:
        model = random_model(**MODEL).to(device)
        engine = GraphEngine(model) if device == "cuda" else Engine(model)
        found = []
        for texts in ([[1, 2, 3], [4]], [[5]], [[1, 2], [3, 4], [5]], [[7], [8], [9]]):
            found.append(engine.start(texts))
            for at in range(10):  # in spans of 8 and 16 positions
                found.append(engine.read(torch.tensor([[at + row] for row in range(len(texts))], device=device)))
            engine.keep([len(texts) - 1, 0])
            found.append(engine.read(torch.tensor([[3], [4]], device=device)))
        return [each.cpu() for each in found]

    expected = logits("cpu")
    with pretended_cuda():
        found = logits("cuda")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_token_costs_one_wait_for_the_gpu(name: str, gpu: PretendedGPU) -> None:
    config = SamplingConfig(max_new_tokens=6, seed=1, **SAMPLING[name])
    for step, _ in enumerate(generate(random_model(**MODEL).to("cuda"), torch.tensor([[1, 2, 3], [4, 5, 6]]), config)):
        if step:  # the first token comes from the prompt
            assert gpu.waits == {"generation/decoding.py describe": 1}
        gpu.clear()


@pytest.mark.parametrize("alternatives", [None, 0, 2])
def test_a_token_with_its_alternatives_costs_one_wait_too(alternatives: int | None, gpu: PretendedGPU) -> None:
    tokenizer = bytes_ending_in("<|endoftext|>")
    config = SamplingConfig(seed=1, top_p=1.0, bad_words=("ab",), min_new_tokens=20)
    engine = resolve_engine(random_model(**MODEL).to("cuda"))
    decoder = Decoder(engine, [[1, 2, 3], [4]], Sampler(config, tokenizer), alternatives=alternatives)
    for _ in range(10):
        gpu.clear()
        decoder.advance()
        gpu.waits.pop("generation/constraint.py _build_mask", None)  # once for each state of a character
        assert sum(gpu.waits.values()) == 1
    decoder.drop({0})
    gpu.clear()
    decoder.advance()
    assert gpu.waits.total() == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_on_cuda_nan_logits_and_bans_of_all_tokens_are_errors(temperature: float, gpu: PretendedGPU) -> None:
    model = random_model(**MODEL).to("cuda")
    ids = torch.tensor([[1, 2, 3]])
    config = SamplingConfig(temperature=temperature)
    with pytest.raises(ConfigError, match="no token is left to choose"):
        next(generate(model, ids, config, processors=[lambda logits, _history, _n_new: logits - torch.inf]))
    model.final_norm.weight.data[3] = torch.nan
    with pytest.raises(GenerationError, match=r"the largest of row 0 is nan.* in the parameter final_norm.weight"):
        next(generate(model, ids, config))


# Many requests at once

REQUESTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("hello world, this is one long prompt", {"temperature": 0.0}, {"alternatives": 2}),
    ("hello world, this is one long prompt", {"temperature": 0.9, "top_p": 0.9}, {}),
    ("abc", {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2}, {"alternatives": 1, "score_prompt": True}),
    ("xyz", {"temperature": 0.7, "top_k": 10, "samples": 2}, {}),
    ("qq", {"typical_p": 0.9}, {"alternatives": 0}),
]


def answers(batch: Batch) -> list[list[Event]]:
    tokenizer = batch.tokenizer
    requests = []
    for number, (prompt, changes, options) in enumerate(REQUESTS):
        config = SamplingConfig(max_new_tokens=12, seed=number, **changes)
        requests.append(GenerationRequest(tokenizer.encode(prompt), config, Sampler(config, tokenizer), **options))
        batch.add(requests[-1])
    found: dict[int, list[Event]] = {id(request): [] for request in requests}
    while not batch.is_idle:
        for event in batch.step():
            found[id(event.request)].append(event)
    return [found[id(request)] for request in requests]


def ids_and_logprobs(events: list[Event]) -> tuple[list[Any], list[float]]:
    tokens = [token for event in events for token in getattr(event.content, "tokens", ())]
    numbers = [
        number
        for token in tokens
        for number in (token.logprob, token.entropy, *(logprob for _, logprob in token.alternatives))
        if number is not None
    ]
    return [(type(event.content).__name__, getattr(event.content, "text", ""), event.is_last) for event in events] + [
        (token.id, token.rank, [id for id, _ in token.alternatives]) for token in tokens
    ], numbers


def test_slots_on_cuda_answer_mixed_requests_as_those_of_the_cpu() -> None:
    tokenizer = bytes_ending_in("<|endoftext|>")
    model = {**MODEL, "n_positions": 64}
    expected = answers(Batch(Slots(random_model(**model), 3), tokenizer))
    with pretended_cuda():
        slots = resolve_slots(random_model(**model).to("cuda"), 3)
        assert isinstance(slots, CudaSlots)
        found = answers(Batch(slots, tokenizer))
    for one, other in zip(found, expected, strict=True):
        found_ids, found_numbers = ids_and_logprobs(one)
        expected_ids, expected_numbers = ids_and_logprobs(other)
        assert found_ids == expected_ids
        assert found_numbers == pytest.approx(expected_numbers, abs=1e-4)


def test_a_step_of_mixed_requests_costs_one_wait_for_the_gpu(gpu: PretendedGPU) -> None:
    tokenizer = bytes_ending_in("<|endoftext|>")
    batch = Batch(resolve_slots(random_model(**MODEL).to("cuda"), len(REQUESTS)), tokenizer)
    for number, (_, changes, options) in enumerate(REQUESTS):
        config = SamplingConfig(max_new_tokens=20, seed=number, **{**changes, "samples": 1})
        batch.add(GenerationRequest([1, 2, 3], config, Sampler(config, tokenizer), **options))
    while batch.n_running < len(REQUESTS) or not all(row.n_new for row in batch._rows):
        batch.step()
    for _ in range(10):
        gpu.clear()
        batch.step()
        gpu.waits.pop("generation/constraint.py _build_mask", None)
        assert gpu.waits == {"generation/decoding.py read_together": 1}
