"""The verdict at the end of a run in plain words."""

import re
from typing import Any

import pytest
from scripts import ROOT

from minigpt.baselines.verdict import EXPLAINED, compared_methods, in_plain_words
from minigpt.storage.run_record import RunRecord

SIZES = {"train_bytes": 900, "validation_bytes": 100, "whole_train_bytes": 900, "whole_validation_bytes": 100}
RECORD: dict[str, Any] = {
    "corpus": {"fingerprint": "f00d", "train_tokens": 450, "train_bytes": 900, "validation_bytes": 100},
    "baselines": {
        "fingerprint": "f00d",
        "measured": [
            {"name": "5-gram", "bits_per_byte": 2.6, **SIZES},
            {"name": "gzip", "bits_per_byte": 3.4, **SIZES, "train_bytes": 0},
        ],
    },
}


@pytest.mark.parametrize(
    ("bits", "verdict", "meaning"),
    [
        (2.0, "Better than a 5-gram table, the best of the 2 methods it is compared with.", "to 25% of its size"),
        (3.0, "Between gzip and a 5-gram table.", "to 38% of its size"),
        (8.5, "Not yet better than gzip, the weakest method it is compared with.", "would not compress such text"),
    ],
)
def test_the_verdict_says_where_the_figure_lies_and_what_it_means(bits: float, verdict: str, meaning: str) -> None:
    first, second = in_plain_words(RunRecord.from_dict(RECORD), [], bits)
    assert first == verdict
    assert second.startswith(f"{bits:.4f} bits per byte: its predictions would")
    assert second.endswith(f"{meaning} ({EXPLAINED}).")


def test_a_fine_tuned_run_is_compared_with_the_model_that_it_began_with() -> None:
    record = RunRecord.from_dict({**RECORD, "from": "/models/gpt2"})
    first, _ = in_plain_words(record, [{"step": 0, "validation_loss": 3.0, "bits_per_byte": 1.9}], 1.8)
    assert first == "Better than gpt2 before fine-tuning, the best of the 3 methods it is compared with."


@pytest.mark.parametrize(("best_step", "above"), [(8, 0.25), (0, 0.0), (7, 0.0)])
def test_the_model_before_fine_tuning_is_compared_on_the_same_tokens(best_step: int, above: float) -> None:
    """The evaluations read other tokens than the result; step 7 has none."""
    evaluations = [
        {"step": step, "validation_loss": 3.0, "bits_per_byte": bits} for step, bits in ((0, 1.5), (4, None), (8, 1.25))
    ]
    result = {"step": 8, "reason": "length", "best_step": best_step, "bits_per_byte": 1.75, "validation_loss": 3.0}
    record = RunRecord.from_dict({**RECORD, "from": "/models/gpt2", "result": result})
    method = compared_methods(record, evaluations)[-1]
    assert (method.name, method.bits) == ("gpt2 before fine-tuning", 1.75 + above)
    assert in_plain_words(record, evaluations, 1.75)[0].startswith("Better than gpt2" if above else "Between a 5-gram")


def test_the_page_that_explains_bits_per_byte_has_that_heading() -> None:
    path, _, heading = EXPLAINED.partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    assert heading in {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
