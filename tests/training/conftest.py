"""The text that most tests of training read."""

import pytest

from minigpt.data.corpus import Corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A sentence 60 times, in bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    return Corpus.build([folder / "fox.txt"], "bytes", cache=folder / "cache")
