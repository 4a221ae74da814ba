"""The last sample of a run is the most likely of several texts, and says so."""

import io
from pathlib import Path

from builders import new_model, new_run
from rich.console import Console

from minigpt.cli.render.training_display import sample_panel
from minigpt.config import SamplingConfig, TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.generation.streaming import Piece, generate_pieces
from minigpt.search.likely_pieces import bits_per_byte
from minigpt.training.events import Sample
from minigpt.training.loop import train


def printed(sample: Sample) -> str:
    out = Console(file=io.StringIO(), width=80)
    out.print(sample_panel(sample))
    return out.file.getvalue()  # type: ignore[attr-defined]


def test_the_last_sample_is_the_most_likely_of_four_texts(corpus: Corpus, tmp_path: Path) -> None:
    model = new_model(scale=5)
    run = new_run(tmp_path / "run", model, corpus.tokenizer)
    config = TrainConfig(steps=2, sample_every=1, batch_size=2, context_length=16, device="cpu")
    samples = [event for event in train(model, corpus, config, run) if isinstance(event, Sample)]
    assert [(sample.step, sample.best_of) for sample in samples] == [(1, 1), (2, 4)]
    assert [line["best_of"] for line in run.read_log() if "sample" in line] == [1, 4]
    drawn = SamplingConfig(max_new_tokens=120, temperature=0.8, top_p=0.95, seed=0, samples=4)
    texts: dict[int, list[Piece]] = {}
    for piece in generate_pieces(model, corpus.tokenizer, [samples[-1].prompt], drawn, alternatives=0):
        texts.setdefault(piece.row, []).append(piece)
    ordered = sorted(texts.values(), key=lambda row: bits_per_byte([each.token for each in row], corpus.tokenizer))
    assert samples[-1].text == "".join(each.text for each in ordered[0])
    assert samples[-1].text != "".join(each.text for each in ordered[-1])
    assert "sample at step 2, the most likely of 4 ─" in printed(samples[-1])
    assert "sample at step 1 ─" in printed(samples[0])
