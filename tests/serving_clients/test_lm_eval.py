"""lm-evaluation-harness gets the log-likelihoods of minigpt and of transformers from `minigpt serve`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from serving_texts import TEXTS

from minigpt.benchmarks.loglikelihood import encode_pair, score_continuations

pytestmark = pytest.mark.serving

TASK = """task: last_word
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_target: " {{{{word}}}}"
metric_list:
  - metric: perplexity
  - metric: acc
"""


def test_log_likelihoods_are_those_of_minigpt_and_transformers(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    passages = [text[: text.index(" ", at)] for text in TEXTS for at in range(20, 90, 7)]
    pairs = [tuple(text.rpartition(" ")[::2]) for text in passages]
    pairs = [(context, word) for context, word in pairs if len(served.tokenizer.encode(f"{context} {word}")) < 120]
    assert len(pairs) >= 10
    data = tmp_path / "passages.jsonl"
    data.write_text("".join(json.dumps({"context": context, "word": word}) + "\n" for context, word in pairs))
    (tmp_path / "last_word.yaml").write_text(TASK.format(file=data))
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "whale",
            "base_url": f"{served.url}/v1/completions",
            "num_concurrent": 8,
            "max_retries": 1,
            "max_length": 128,
            "tokenized_requests": True,
        },
        tasks=["last_word"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        log_samples=True,
    )
    samples = sorted(results["samples"]["last_word"], key=lambda sample: sample["doc_id"])
    found = [sample["filtered_resps"][0] for sample in samples]
    assert len(found) == len(pairs)
    encoded = [encode_pair(served.tokenizer, context, f" {word}") for context, word in pairs]
    own = score_continuations(served.model, encoded)
    peer = transformers.AutoModelForCausalLM.from_pretrained(served.folder).eval()
    for (logprob, is_greedy), score, (context, continuation) in zip(found, own, encoded, strict=True):
        assert float(logprob) == pytest.approx(score.log_probability, abs=1e-3)
        assert bool(is_greedy) == score.is_greedy
        ids = torch.tensor([[*context, *continuation]])
        with torch.no_grad():
            logprobs = peer(ids).logits[0].log_softmax(-1)
        positions = range(len(context) - 1, ids.shape[1] - 1)
        total = sum(float(logprobs[at, ids[0, at + 1]]) for at in positions)
        assert float(logprob) == pytest.approx(total, abs=1e-3)
