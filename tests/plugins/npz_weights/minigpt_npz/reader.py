"""Reads the weights of a GPT-2 from a .npz file of NumPy, with Hugging Face's names, next to a config.json."""

from pathlib import Path

import numpy as np
import torch

from minigpt.pretrained.huggingface import open_huggingface
from minigpt.pretrained.imported_model import ImportedModel, WeightReader
from minigpt.storage.tensors import LazyTensor, TensorSource


def matches(path: Path, start: bytes) -> bool:
    return path.suffix == ".npz" and start.startswith(b"PK")


def read(path: Path, ids_only: bool) -> ImportedModel:
    arrays = np.load(path)
    tensors = {name: LazyTensor.of(torch.from_numpy(arrays[name])) for name in arrays.files}
    return open_huggingface(path, TensorSource(path, tensors, arrays.close), ids_only=ids_only)


READERS = (WeightReader(matches=matches, read=read, single_files=("*.npz",), files=(".npz",)),)
