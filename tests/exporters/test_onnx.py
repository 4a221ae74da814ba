"""The exported ONNX graph, run by onnxruntime, gives the model's logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import random_model
from torch import Tensor

from minigpt.config import GPTConfig
from minigpt.exporters.onnx import ONNX_MODEL, write_onnx
from minigpt.model.gpt import GPT

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

SHAPE = GPTConfig(vocab_size=50, n_positions=24, n_embd=24, n_layer=3, n_head=4, layer_norm_epsilon=1e-3)
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model() -> GPT:
    return random_model(SHAPE)


@pytest.fixture(scope="module")
def session(model: GPT, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("onnx")
    write_onnx(folder, model)
    return onnxruntime.InferenceSession(folder / ONNX_MODEL, providers=["CPUExecutionProvider"])


def empty(batch: int) -> dict[str, Any]:
    nothing = np.zeros((batch, SHAPE.n_head, 0, SHAPE.head_width), np.float32)
    return {f"past_key_values.{n}.{part}": nothing for n in range(SHAPE.n_layer) for part in ("key", "value")}


def step(session: Any, ids: Tensor, mask: Tensor, cache: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """The logits of the last ids of the mask; positions are counted as in transformers and Optimum."""
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)[:, -ids.shape[1] :]
    inputs = {"input_ids": ids.numpy(), "attention_mask": mask.numpy(), "position_ids": positions.numpy()}
    names = [output.name for output in session.get_outputs()]
    logits, *present = session.run(None, inputs | cache)
    assert names[0] == "logits"
    return torch.from_numpy(logits), {
        name.replace("present", "past_key_values"): value for name, value in zip(names[1:], present, strict=True)
    }


def test_the_file_is_valid_and_has_optimums_input_and_output_names(model: GPT, tmp_path: Path) -> None:
    write_onnx(tmp_path, model)
    assert [file.name for file in tmp_path.iterdir()] == [ONNX_MODEL]
    onnx.checker.check_model(tmp_path / ONNX_MODEL, full_check=True)
    graph = onnx.load(tmp_path / ONNX_MODEL).graph
    assert [value.name for value in graph.input][:4] == [
        "input_ids",
        "attention_mask",
        "position_ids",
        "past_key_values.0.key",
    ]
    assert [value.name for value in graph.output][:3] == ["logits", "present.0.key", "present.0.value"]
    assert len(graph.input) == len(graph.output) + 2 == 3 + 2 * SHAPE.n_layer


def test_one_pass_gives_the_models_logits(model: GPT, session: Any) -> None:
    for batch, length in ((1, 1), (2, 7), (3, SHAPE.n_positions)):
        ids = torch.randint(SHAPE.vocab_size, (batch, length))
        logits, cache = step(session, ids, torch.ones_like(ids), empty(batch))
        torch.testing.assert_close(logits, model(ids).detach(), atol=TOLERANCE, rtol=0)
        assert cache["past_key_values.2.value"].shape == (batch, SHAPE.n_head, length, SHAPE.head_width)


def test_the_exact_gelu_stays_exact(model: GPT, tmp_path: Path) -> None:
    exact = GPT.from_tensors(SHAPE.replace(activation_function="gelu"), model.state_dict()).eval()
    write_onnx(tmp_path, exact)
    session = onnxruntime.InferenceSession(tmp_path / ONNX_MODEL, providers=["CPUExecutionProvider"])
    ids = torch.randint(SHAPE.vocab_size, (1, 9))
    logits, _ = step(session, ids, torch.ones_like(ids), empty(1))
    torch.testing.assert_close(logits, exact(ids).detach(), atol=TOLERANCE, rtol=0)
    assert (logits - model(ids).detach()).abs().max() > 10 * TOLERANCE


def test_two_passes_with_the_cache_give_the_logits_of_one_at_every_split(model: GPT, session: Any) -> None:
    ids = torch.randint(SHAPE.vocab_size, (2, 12))
    whole = model(ids).detach()
    for size in (1, 3, 5, 11):
        cache, pieces = empty(2), []
        for start in range(0, 12, size):
            piece = ids[:, start : start + size]
            mask = torch.ones(2, start + piece.shape[1], dtype=torch.int64)
            logits, cache = step(session, piece, mask, cache)
            pieces.append(logits)
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=TOLERANCE, rtol=0)


def test_left_padding_does_not_change_logits(model: GPT, session: Any) -> None:
    lengths, width = (9, 4, 1), 9
    ids = torch.randint(SHAPE.vocab_size, (3, width + 3))
    mask = torch.ones(3, width + 3, dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, : width - length] = 0
    first, cache = step(session, ids[:, :width], mask[:, :width], empty(3))
    pieces = [first]
    for end in range(width + 1, width + 4):
        logits, cache = step(session, ids[:, end - 1 : end], mask[:, :end], cache)
        pieces.append(logits)
    together = torch.cat(pieces, dim=1)
    assert together.isfinite().all()  # at padded positions, too: NaN there would spread to later layers
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, width - length :]).detach()[0]
        torch.testing.assert_close(together[row, width - length :], alone, atol=TOLERANCE, rtol=0)


def test_large_weights_are_stored_in_a_separate_file(model: GPT, tmp_path: Path) -> None:
    write_onnx(tmp_path, model, max_inline_size=1000)
    assert (tmp_path / ONNX_MODEL).stat().st_size < 50_000
    assert (tmp_path / "model.onnx_data").stat().st_size > 4 * SHAPE.n_parameters
    onnx.checker.check_model(tmp_path / ONNX_MODEL)
    session = onnxruntime.InferenceSession(tmp_path / ONNX_MODEL, providers=["CPUExecutionProvider"])
    ids = torch.randint(SHAPE.vocab_size, (2, 7))
    logits, _ = step(session, ids, torch.ones_like(ids), empty(2))
    torch.testing.assert_close(logits, model(ids).detach(), atol=TOLERANCE, rtol=0)
