"""Writes files of tokens as nanoGPT, llm.c, modded-nanogpt and datatrove do."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_nanogpt(path: Path, ids: Sequence[int], dtype: str = "<u2") -> Path:
    """`train.bin` or `val.bin`; source: karpathy/nanoGPT, data/openwebtext/prepare.py."""
    np.array(ids, dtype).tofile(path)
    return path


def write_meta(folder: Path, characters: str) -> None:
    """`meta.pkl`; source: karpathy/nanoGPT, data/shakespeare_char/prepare.py."""
    itos, stoi = dict(enumerate(characters)), {character: id for id, character in enumerate(characters)}
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters), "itos": itos, "stoi": stoi}))


def write_llmc(
    path: Path, ids: Sequence[int], magic: int = 20240520, version: int = 1, count: int | None = None
) -> Path:
    """A shard; source: karpathy/llm.c, dev/data/data_common.py, and KellerJordan/modded-nanogpt, data/fineweb.py."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, count or len(ids)
    path.write_bytes(header.tobytes() + np.array(ids, "<u2").tobytes())
    return path


def write_datatrove(path: Path, documents: Sequence[Sequence[int]], tokenizer: str, width: int = 2) -> Path:
    """A `.ds` with its companions; source: huggingface/datatrove, src/datatrove/pipeline/tokens/tokenizer.py."""
    ends = np.cumsum([len(each) for each in documents])
    path.write_bytes(np.concatenate(documents).astype(f"<u{width}").tobytes())
    path.with_name(f"{path.name}.index").write_bytes(ends.astype("<u8").tobytes())
    path.with_name(f"{path.name}.metadata").write_text(f"{tokenizer}|{width}\n{ends[-1]}\n{ends[-1]} T")
    return path
