"""Texts with weights, texts without repeated documents, and files of tokens: what their sources hold, as a corpus."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minigpt.config import ReadingConfig
from minigpt.data.corpus import Corpus, corpus_fingerprint
from minigpt.data.corpus_cache import cache_key, cache_root
from minigpt.data.records import conversations
from minigpt.data.source_files import SourceFile
from minigpt.data.sources import scan
from minigpt.data.texts import Texts
from minigpt.data.token_writer import ByteProgress
from minigpt.errors import ConfigError
from minigpt.large_corpora import corpora, scans
from minigpt.large_corpora.mixture import weighted
from minigpt.large_corpora.settings import MixSettings
from minigpt.large_corpora.token_files import TokenFile, find_token_files, has_tokens
from minigpt.large_corpora.token_tokenizer import characters_of, tokenizer_of
from minigpt.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Mixture(Texts):
    """Several texts, each with a weight: each training sequence comes from one of them by its weight."""

    weights: tuple[float, ...]

    @property
    def single(self) -> None:
        """Nothing."""

    def build(
        self,
        tokenizer: Tokenizer | str | None,
        *,
        cache: str | Path | None = None,
        validation_fraction: float | None = None,
        progress: ByteProgress | None = None,
    ) -> Corpus:
        """Like `Corpus.build`. The validation part has tokens of each text in proportion to its weight.

        Raises: as `Corpus.build`; ConfigError for a weight that is too small.
        """
        if (logs := conversations()) is not None:
            for text in self.scans:
                logs.check(text.n_unlearned, knows_speakers=False)
        built = Corpus.build_each(
            self.scans,
            self.weights,
            tokenizer or self.default_tokenizer,
            cache=cache,
            validation_fraction=validation_fraction,
            progress=progress,
        )
        fingerprint = self.fingerprint(built[0].tokenizer, validation_fraction)
        return corpora.mix(cache_root(cache), fingerprint, built, self.weights)

    def fingerprint(self, tokenizer: Tokenizer, validation_fraction: float | None) -> str:
        """The fingerprint of the corpus that `build` makes."""
        own = [corpus_fingerprint(text, tokenizer, validation_fraction) for text in self.scans]
        return cache_key("mix", own, list(map(float, self.weights)))


@dataclass(frozen=True)
class TokenTexts(Texts):
    """Files of tokens, as one text or several with weights."""

    tokens: Sequence[Sequence[TokenFile]]
    weights: tuple[float, ...] = ()

    @property
    def single(self) -> None:
        """Nothing."""

    @property
    def files(self) -> list[TokenFile]:
        """All files."""
        return [file for text in self.tokens for file in text]

    def build(
        self,
        tokenizer: Tokenizer | str | None,
        *,
        cache: str | Path | None = None,
        validation_fraction: float | None = None,
        progress: ByteProgress | None = None,  # noqa: ARG002
    ) -> Corpus:
        """The corpus of the files, which are read where they are, with their tokenizer (see `tokenizer_of`)."""
        own, characters = tokenizer_of(self.files, tokenizer)
        return corpora.of_tokens(
            self.tokens, self.weights, own, characters, cache=cache, validation_fraction=validation_fraction
        )

    def fingerprint(self, tokenizer: Tokenizer, validation_fraction: float | None) -> str:
        """The fingerprint of the corpus that `build` makes."""
        return self.build(tokenizer, validation_fraction=validation_fraction).fingerprint

    def notices(self, corpus: Corpus) -> list[str]:
        """What the user should know of the files."""
        found = []
        masks = [each.path.with_name(f"{each.path.name}.loss") for each in self.files]
        if masked := [mask for mask in masks if mask.is_file()]:
            found.append(f"{masked[0]} is not read: every token is scored")
        if not corpus.n_documents and characters_of(self.files[0].path.parent) is None:
            found.append("no document ends with an end-of-text in these files, so the model cannot learn to end one")
        return found


class Reader:
    """What the seam "token_reader" asks for; see `minigpt.data.texts.TokenReader`."""

    has_tokens = staticmethod(has_tokens)
    open = staticmethod(corpora.open_corpus)

    def find(self, sources: Sequence[str], config: ReadingConfig, cache: Path | None) -> Texts | None:
        """What these sources hold: with `mix`, each is a text with a weight.

        Raises: DataError, ConfigError as `scan` and `weighted`; ConfigError for a file in two texts of a mixture,
        unless equal documents are dropped.
        """
        reading = MixSettings.of(config)
        pairs = weighted(sources) if reading.mix else []
        weights = tuple(weight for _, weight in pairs)
        tokens = [find_token_files(each) for each in ([[text] for text, _ in pairs] or [list(sources)])]
        if any(tokens):
            _check_tokens(tokens, config)
            return TokenTexts([], tokens, weights)
        seen: set[bytes] | None = set() if reading.deduplicate else None
        measure = partial(scans.measure, cache, seen)
        if not pairs:
            return Texts([scan(list(sources), measure=measure, **vars(config))])
        found = [scan(text, measure=measure, **vars(config)) for text, _ in pairs]
        if seen is None:
            _check_separate([text.files for text in found], ", or add --deduplicate")
        return Mixture(found, weights)


def _check_tokens(texts: Sequence[Sequence[TokenFile]], reading: ReadingConfig) -> None:
    """Raises ConfigError for texts beside files of tokens, and for settings of reading that these cannot have."""
    if not all(texts):
        raise ConfigError("mix: some of the texts are files of tokens and others are not; give files of one kind")
    for name in ReadingConfig.__dataclass_fields__.keys() - {"mix", "validation_fraction"}:
        if getattr(reading, name) != getattr(ReadingConfig(), name):
            raise ConfigError(f"{name} has no effect on {texts[0][0].name}, which is tokenized already; omit it")
    _check_separate(texts, "")


def _check_separate(texts: Sequence[Sequence[SourceFile | TokenFile]], also: str) -> None:
    """Raises ConfigError for a file in two texts: documents that are held out of one would be trained on in another."""
    known: set[str] = set()
    for text in texts:
        paths = [os.path.realpath(file.path) for file in text]
        for name, path in zip([file.name for file in text], paths, strict=True):
            if path in known:
                raise ConfigError(
                    f"mix: {name} is in two texts, so its held-out documents would be trained on; remove it from "
                    f"one of them{also}"
                )
        known.update(paths)


reader = Reader()
