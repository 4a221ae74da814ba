"""`make demo`: two minutes of training on a book, on one screen, and a page of the model to open or to send.

    python demo/demo.py [TEXT] [--minutes 2] [--from starter]

The same prompt is continued by the model before training, after some seconds, and at the end. Bars compare how many
bits the model and three other programs need for a byte of the text that none of them has seen.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

import minigpt
from minigpt.exporters.export import export_model
from minigpt.exporters.html.page import PageText
from minigpt.runs.events import Started
from minigpt.training.events import Evaluation, Finished, Sample, Step
from minigpt.units import duration

BOOK = Path(__file__).parent / "sherlock_holmes.txt"
PROMPT = "“It is a most singular case,” said Holmes"
EARLY = 20.0  # seconds after which the next sample of the run is shown
TOKENS = 60
COMPARED = ("gzip", "xz", "5-gram")


class Screen:
    """What is seen: the continuations, the bars, and how much time is left."""

    def __init__(self, out: Console, title: str) -> None:
        self.out, self.title = out, title
        self.texts: dict[str, str] = {}
        self.bars: dict[str, float] = {}
        self.left = "preparing …"

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [Rule(self.title, align="left")]
        for when, text in self.texts.items():
            parts += [Text(when, style="dim"), Text(PROMPT, style="bold").append(text, style="not bold"), Text()]
        parts += [self._bars(), Text(self.left, style="dim")]
        return Group(*parts)

    def _bars(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        most = max(self.bars.values(), default=1.0)
        width = max(10, min(50, self.out.width - 40))
        for name, bits in sorted(self.bars.items(), key=lambda bar: -bar[1]):
            bar = Text("█" * round(width * bits / most), style="green" if name == "this model" else "blue")
            table.add_row(name, bar, f"{bits:.2f} bits per byte")
        return table


def watch(events: Iterable[object], screen: Screen) -> Finished | None:
    """Shows the events of a run; returns the last one if the run ended."""
    seconds, finished = 0.0, None
    for event in events:
        if isinstance(event, Started):
            screen.bars |= {each.name: each.bits_per_byte for each in event.baselines if each.name in COMPARED}
        elif isinstance(event, Step):
            seconds = event.seconds
            screen.left = f"{duration(event.seconds_left)} left, {event.tokens_per_second:,.0f} tokens/s"
        elif isinstance(event, Evaluation):
            screen.bars["this model"] = event.bits_per_byte
        elif isinstance(event, Sample) and seconds >= EARLY and not any("after" in when for when in screen.texts):
            screen.texts[f"after {seconds:.0f} seconds"] = event.text
        elif isinstance(event, Finished):
            finished = event
            if event.bits_per_byte is not None:
                screen.bars["this model"] = event.bits_per_byte
    return finished


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path, default=BOOK)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--from", dest="base", help="the model to begin with [default: a new one]")
    given = parser.parse_args(arguments)
    out = Console(highlight=False)
    begin = f"{given.base} reads" if given.base else "a new model reads"
    screen = Screen(out, f"{begin} {given.text.name} for {given.minutes:g} minute{'s' if given.minutes != 1 else ''}")
    if given.base:
        untrained = minigpt.load(given.base)
        screen.texts["before training"] = untrained.generate(PROMPT, max_new_tokens=TOKENS, seed=1)
    events = minigpt.fit(given.text, minutes=given.minutes, base=given.base, sample_prompt=PROMPT)
    with Live(screen, console=out, refresh_per_second=4):
        finished = watch(events, screen)
        model = minigpt.load()
        screen.texts["at the end, the most likely of 16"] = model.generate(
            PROMPT, max_new_tokens=TOKENS, temperature=0.6, best_of=16, seed=1
        )
        screen.left = f"done in {duration(finished.seconds)}" if finished else "stopped"
    page = Path(__file__).parent / f"{model.directory.name}.html"
    export_model(model.directory, "html", output=page, force=True, text=PageText(title=given.text.stem, prompt=PROMPT))
    out.print(f"\n{page}: this model as a page; open it in a browser, or send it to a friend")
    out.print(f"{model.directory}/report.html: how it was trained")
    out.print(f'minigpt generate "{PROMPT}"   more of it, from {model.directory}', soft_wrap=True)


if __name__ == "__main__":
    main()
