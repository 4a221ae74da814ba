"""The settings of `minigpt evaluate`; edges add theirs, and what else than texts can be evaluated."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from minigpt.cli.render.terminal import note
from minigpt.config import ReadingConfig
from minigpt.settings import Settings, setting
from minigpt.units import count

if TYPE_CHECKING:
    from minigpt.cli.render.evaluation import TextResult
    from minigpt.cli.render.result_table import ResultTable
    from minigpt.data.sources import Scan
    from minigpt.evaluation.perplexity import Windows
    from minigpt.storage.checkpoint import Checkpoint

# Evaluates a model in windows of its context. Adds each result to the record for JSON, and yields its table.
Measurement = Callable[["Checkpoint", "Windows", dict[str, Any]], Iterator["ResultTable"]]


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(Settings):
    """The settings of `evaluate`.

    An edge adds a group to the seam `evaluate_settings`: a subclass with its settings. It overrides the methods below
    and adds to what `super()` says. The arguments of the command that `names_in` returns are no texts but names of what
    the edge measures, such as benchmarks.
    """

    stride: int | None = setting(
        None, "tokens by which the window advances [default: half the context]", min=1, common=True
    )
    context_length: int | None = setting(None, "tokens in the window [default: the model's]", common=True)
    batch_size: int | None = setting(
        None, "windows or examples evaluated together [default: about 8,000 tokens]", min=1
    )
    limit: int | None = setting(None, "evaluate only the first N documents or examples", min=1, common=True)
    by_position: bool = setting(False, "also show the loss by position in the window", common=True)
    markdown: bool = setting(False, "print Markdown tables instead of text", common=True)

    texts_help = "text files, folders or globs, or - for standard input"
    # Settings where an edge declares them: the role whose turns are scored, and whether the text is the held-out part
    # of the training text, which the run names.
    loss_on = cast("str | None", None)
    held_out = False

    @property
    def kinds(self) -> list[str]:
        """What can be given to evaluate."""
        return ["a text file"]

    def names_in(self, arguments: Sequence[str]) -> list[str]:  # noqa: ARG002
        """The arguments that name something else than a text.

        Raises: DataError for one that is nearly such a name.
        """
        return []

    def check_together(self, names: Sequence[str], *, has_text: bool) -> None:
        """Raises ConfigError for settings that do not go with what is evaluated, before the model is loaded."""

    def default_windows(self, checkpoint: "Checkpoint") -> tuple[int, int]:
        """The context and the stride of the windows where they are not given."""
        n_positions = checkpoint.model.config.n_positions
        context = self.context_length or n_positions
        return context, max(1, min(context, n_positions) // 2)

    def notes_on(self, found: "Scan", checkpoint: "Checkpoint") -> list[str]:  # noqa: ARG002
        """What there is to say about evaluating this model on this text."""
        return []

    def evaluate_texts(
        self, checkpoint: "Checkpoint", sources: list[str], reading: dict[str, Any], windows: "Windows"
    ) -> "TextResult":
        """Evaluates the documents of these sources together, read with these settings; prints notes on them."""
        import numpy as np

        from minigpt.cli.render.console import console, progress_bar
        from minigpt.cli.render.evaluation import TextResult
        from minigpt.cli.text_evaluation import break_down_stream
        from minigpt.data.corpus import Corpus
        from minigpt.data.sources import scan
        from minigpt.evaluation.documents import document_origins, document_stream

        given, loss_on = ReadingConfig(**reading), self.loss_on or "all"
        found = scan(sources, **reading)
        for each in found.notes:
            note(each)
        for name in found.skipped:
            note(f"skipped {name}: not a text file")
        for each in self.notes_on(found, checkpoint):
            note(f"note: {each}")
        with progress_bar(console(), "tokenizing", in_bytes=True) as report:
            tokenizer = checkpoint.tokenizer.with_names() if given.special_tokens else checkpoint.tokenizer
            corpus = Corpus.build(found, tokenizer, validation_fraction=0, progress=report)
        corpus.check_loss_on(loss_on)
        stream, scored = document_stream(corpus, windows.limit), corpus.scored(loss_on, "train")
        if scored is not None:
            scored = np.insert(scored[: len(stream) - 1], 0, False)
        labels = [origin.label for origin in document_origins(found, 0)[: windows.limit]]
        title = "all texts" if windows.limit is None else f"the first {count(len(labels), 'document')}"
        parts = break_down_stream(checkpoint, stream, scored, windows, self.by_position)
        return TextResult(title, labels, parts, loss_on)

    def prepare(self, names: Sequence[str]) -> list[Measurement]:  # noqa: ARG002
        """The measurements that have these names, with their data.

        Raises: DataError for data that is missing.
        """
        return []
