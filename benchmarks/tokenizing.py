"""Speed of tokenizing a corpus, compared with tiktoken, for texts with different line lengths.

    python benchmarks/tokenizing.py TEXT --megabytes 100 --rounds 3

The text is repeated to the given size and laid out in three ways: unchanged, as a single line, and as lines of four
words. minigpt's time is that of `Corpus.build` with GPT-2's vocabulary after the text has been scanned: reading it,
splitting it into blocks, encoding, and writing the tokens. tiktoken's time is that of `encode_ordinary_batch` on all
cores over the text in memory, once in pieces of 1 MB that end at white space (its fastest way), and once in paragraphs.
Rounds alternate between the engines; ratios are computed within a round.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from minigpt import Corpus, Tokenizer
from minigpt.data.sources import scan
from minigpt.tokenizer.vocabulary import Vocabulary

PIECE = 1_000_000  # characters


def layouts(text: str) -> dict[str, str]:
    words = text.split()
    return {
        "unchanged": text,
        "one line": " ".join(words),
        "short lines": "\n".join(" ".join(words[i : i + 4]) for i in range(0, len(words), 4)),
    }


def pieces(text: str) -> list[str]:
    """Splits the text into pieces of about 1 MB that end before white space."""
    cut, start = [], 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        while end < len(text) and not text[end].isspace():
            end += 1
        cut.append(text[start:end])
        start = end
    return cut


def seconds_of_minigpt(path: Path) -> float:
    found, tokenizer = scan([path]), Tokenizer.named("gpt2")
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        Corpus.build(found, tokenizer, cache=cache)
        return time.perf_counter() - began


def seconds_of_tiktoken(texts: list[str]) -> float:
    vocabulary = Tokenizer.named("gpt2").vocabulary
    assert isinstance(vocabulary, Vocabulary)
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=dict(vocabulary.tokens), special_tokens=dict(vocabulary.special)
    )
    began = time.perf_counter()
    encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count() or 1)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    text *= max(1, options.megabytes * 1_000_000 // len(text.encode()))
    print("| layout | minigpt, MB/s | tiktoken, 1 MB pieces | tiktoken, paragraphs | minigpt / the better |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, laid_out in layouts(text).items():
            path = Path(folder, "text.txt")
            path.write_text(laid_out, encoding="utf-8")
            size = len(laid_out.encode()) / 1e6
            rows = []
            for _ in range(options.rounds):
                ours = size / seconds_of_minigpt(path)
                large = size / seconds_of_tiktoken(pieces(laid_out))
                small = size / seconds_of_tiktoken(laid_out.split("\n\n"))
                rows.append((ours, large, small, ours / max(large, small)))
            ours, large, small, ratio = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"| {name} | {ours:.1f} | {large:.1f} | {small:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
