"""The prompt of samples: the first words of a held-out sentence, in prose, verse, programs and Chinese."""

from pathlib import Path

import pytest
from builders import new_model

from minigpt.config import TrainConfig
from minigpt.data.corpus import Corpus
from minigpt.held_out.sample_prompt import sample_prompt
from minigpt.training.events import Sample
from minigpt.training.loop import train

PROSE = "ing of a sentence. Mr. Fox jumps over the lazy dog today. The rain in Spain stays mainly in the plain. "


def corpus_of(folder: Path, *documents: str, tokenizer: str = "bytes") -> Corpus:
    """A corpus whose held-out part is these documents."""
    (folder / "text.txt").write_text("<|endoftext|>".join(["x " * 40, *documents]), encoding="utf-8")
    built = Corpus.build([folder / "text.txt"], tokenizer, cache=folder / "cache", validation_fraction=0.5)
    ids = [id for document in documents for id in (*built.tokenizer.encode(document), built.tokenizer.end_of_text)]
    object.__setattr__(built, "validation", built.train[:0].__class__(len(ids), built.train.dtype))
    built.validation[:] = ids
    return built


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (PROSE, "Mr. Fox jumps over"),  # not the end of a sentence that begins before, and no title alone
        ("end. CHAPTER 5\n\nIt was a dark and stormy night. Then more.", "It was a"),
        ("end. “No,” said she to the man at last. More of it.", "“No,” said she to"),
        ("end.\nALL:\nSpeak, speak to us now.\n\nFirst man:", "ALL:\nSpeak, speak"),
        ("rest)\n\ndef add(first, second):\n    return first + second * 2 - 1\n", "return first + second"),
        ("了。我们明天早上一起去那个很远的地方看海吧。好。", "我们明天早上"),
        ("One sentence is all that there is. ", "One sentence is"),
        ("a\nb\nc\n", ""),
        ("", ""),
    ],
)
def test_the_prompt_is_the_beginning_of_a_sentence(tmp_path: Path, document: str, expected: str) -> None:
    assert sample_prompt(corpus_of(tmp_path, document), 40) == expected


def test_a_prompt_fits_into_few_tokens_and_does_not_cross_documents(tmp_path: Path) -> None:
    prose = corpus_of(tmp_path, PROSE)
    assert sample_prompt(prose, 12) == "Mr. Fox"
    assert sample_prompt(prose, 2) == ""
    several = corpus_of(tmp_path, "no end here", "The second document begins with a sentence. And more.")
    assert sample_prompt(several, 40) == "The second document begins"


def test_samples_begin_with_it_unless_a_prompt_is_given(tmp_path: Path) -> None:
    corpus, samples = corpus_of(tmp_path, PROSE), []
    for prompt in (None, "", "x"):
        config = TrainConfig(steps=1, batch_size=2, context_length=64, device="cpu", sample_prompt=prompt)
        events = train(new_model(n_positions=64), corpus, config)
        samples += [event.prompt for event in events if isinstance(event, Sample)]
    assert samples == ["Mr. Fox jumps over", "", "x"]
