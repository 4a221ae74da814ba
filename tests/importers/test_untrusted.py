"""Malicious files: no code runs, nothing is written, memory stays bounded, and the error is one line."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import new_model

from minigpt.config import GPTConfig
from minigpt.errors import MinigptError
from minigpt.importers.torch_file import TensorPlace, torch_tensors
from minigpt.model.gpt import GPT
from minigpt.pretrained.gpt2 import import_gpt2
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.storage.huggingface import to_huggingface
from minigpt.storage.tensors import save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

CONFIG = GPTConfig(vocab_size=257, n_positions=8, n_embd=12, n_layer=1, n_head=3)


class Attack:
    """An object whose pickle runs a command when it is loaded without restrictions."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.proof}",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder without weights."""
    folder = save_checkpoint(tmp_path / "model", new_model(CONFIG), Tokenizer.named("bytes"))
    (folder / "model.safetensors").unlink()
    return folder


def weights() -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in to_huggingface(new_model(CONFIG)).items()}


def refused(folder: Path, message: str) -> None:
    with pytest.raises(MinigptError, match=message) as error:
        import_gpt2(folder, checkpoints=folder.parent / "to", device="cpu")
    assert "\n" not in str(error.value)
    assert not (folder.parent / "to").exists()


@pytest.mark.parametrize("zipped", [True, False], ids=["new form", "old form"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "ckpt.pt"])
def test_a_command_in_a_torch_file_does_not_run(tmp_path: Path, folder: Path, name: str, zipped: bool) -> None:
    proof = tmp_path / "attacked"
    content: dict[str, Any] = {"model": weights(), "model_args": {"n_layer": 1}} if name == "ckpt.pt" else weights()
    torch.save(content | {"x": Attack(proof)}, folder / name, _use_new_zipfile_serialization=zipped)
    refused(folder, f"{name} would run posix.system when opened, which weights do not need .*as safetensors$")
    assert not proof.exists()
    torch.load(folder / name, weights_only=False)  # unrestricted, the attack works
    assert proof.exists()


def test_a_command_in_a_bare_pickle_does_not_run(tmp_path: Path, folder: Path) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Attack(tmp_path / "attacked"), protocol))
        refused(folder, "pytorch_model.bin (would run|is truncated, damaged or not a file of weights)")
    assert not (tmp_path / "attacked").exists()


def test_a_zip_bomb_is_not_unpacked(folder: Path) -> None:
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", bytes(2**24))
    refused(
        folder, r"is a compressed zip \('archive/data.pkl' would unpack to \d+ bytes\), which torch.save never writes"
    )


def test_zip_members_that_claim_more_than_the_file_are_refused(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(weights(), path)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")  # makes the last member claim 4 GB
    content[at + 20 : at + 28] = (2**32 - 2).to_bytes(4, "little") * 2
    path.write_bytes(content)
    refused(folder, "claims to hold 4,29|is truncated or damaged")


def test_an_encrypted_zip_is_refused(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(weights(), path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flags of the first member
    path.write_bytes(content)
    refused(folder, r"is an encrypted zip \('.*' needs a password\)")


def test_a_zip_whose_member_ends_too_early_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(weights(), folder / "pytorch_model.bin")

    def read(*_: object) -> bytes:
        raise EOFError

    monkeypatch.setattr(zipfile.ZipExtFile, "read", read)
    refused(folder, "is truncated, damaged or not a file of weights")


@pytest.mark.parametrize("dtype", [torch.quint8, torch.bits8, torch.uint4, torch.complex64], ids=str)  # type: ignore[attr-defined]
def test_a_tensor_of_a_type_that_is_not_of_real_numbers_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    with pytest.raises(MinigptError, match=r"'x' in .* is sparse, quantized or complex"):
        torch_tensors(tmp_path, {"x": TensorPlace(dtype, (1,), (1,), 0)})


@pytest.mark.parametrize("zipped", [True, False], ids=["new form", "old form"])
def test_a_tensor_that_claims_more_than_the_file_holds_is_refused(folder: Path, zipped: bool) -> None:
    huge = torch.zeros(1).expand(2**20, 2**14)
    torch.save(weights() | {"transformer.wte.weight": huge}, folder / "pytorch_model.bin",
               _use_new_zipfile_serialization=zipped)  # fmt: skip
    refused(folder, r"claims to hold 68,7\d\d,\d\d\d,\d\d\d bytes of tensors but has")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../model/part.safetensors", "names '../model/part.safetensors', which must be a file in the same folder"),
        ("/etc/passwd", "names '/etc/passwd', which must be a file in the same folder"),
        ("sub/part.safetensors", "names 'sub/part.safetensors', which must be"),
        ("..\\part.safetensors", "names .*, which must be a file in the same folder"),
        ("..", r"names '\.\.', which must be a file in the same folder"),
        ("", "names '', which must be a file in the same folder"),
        ("a\nb.safetensors", r"names 'a\\nb.safetensors', which must be a file in the same folder"),
        ("a\ud800.safetensors", r"names .a\\ud800.safetensors., which must be a file in the same folder"),
        ("none.safetensors", "model/none.safetensors does not exist"),
        (5, "must have a weight_map of tensor names to files"),
    ],
)
def test_an_index_can_name_only_files_in_its_folder(folder: Path, name: Any, message: str) -> None:
    save_tensors(folder / "part.safetensors", weights())
    index = {"weight_map": dict.fromkeys(weights(), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, message)


def test_other_files_in_place_of_weights_give_a_one_sentence_error(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(folder, "Git LFS pointer|has no supported format")
    (folder / "pytorch_model.bin").write_bytes(b"<html>")
    refused(folder, "pytorch_model.bin has no supported format")
    (folder / "pytorch_model.bin").unlink()
    (folder / "pytorch_model.bin").mkdir()
    refused(folder, "pytorch_model.bin")


_MEASURED = """
import sys
from pathlib import Path
from minigpt.errors import MinigptError
from minigpt.pretrained.open_model import load_model

def peak():  # not ru_maxrss, which starts at the parent's value
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

load_model(Path(sys.argv[1]), "cpu")  # imports everything that is imported late
before = peak()
try:
    load_model(Path(sys.argv[2]), "cpu")
    print("read")
except MinigptError as error:
    print(error)
print(peak() - before)
"""


def kilobytes(small: Path, path: Path) -> tuple[str, int]:
    """The output of opening a path, and the rise of peak memory over that of opening a small model."""
    done = subprocess.run([sys.executable, "-c", _MEASURED, str(small), str(path)], capture_output=True, text=True,
                          check=True)  # fmt: skip
    *output, peak = done.stdout.splitlines()
    return "\n".join(output), int(peak)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
def test_refusing_a_zip_bomb_needs_no_memory(folder: Path) -> None:
    torch.save(weights(), folder / "pytorch_model.bin")
    bomb = folder.parent / "bomb.bin"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(2**28))
    output, peak = kilobytes(folder, bomb)
    assert "is a compressed zip" in output
    assert peak < 20_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize("form", ["safetensors", "bin, new form", "bin, old form", "ckpt.pt"])
def test_loading_needs_memory_for_the_weights_only_once(folder: Path, form: str) -> None:
    config = GPTConfig(vocab_size=50257, n_positions=64, n_embd=256, n_layer=8, n_head=4)
    tokenizer = Tokenizer.named("gpt2")
    small = save_checkpoint(folder.parent / "small", GPT(config.replace(n_embd=8, n_layer=1)), tokenizer)
    if form != "safetensors":
        little = {
            name: tensor.contiguous() for name, tensor in to_huggingface(load_checkpoint(small, "cpu").model).items()
        }
        (small / "model.safetensors").unlink()
        torch.save(little, small / "pytorch_model.bin", _use_new_zipfile_serialization="old" not in form)
    large = save_checkpoint(folder.parent / "large", GPT(config), tokenizer)
    tensors = {name: tensor.contiguous() for name, tensor in to_huggingface(GPT(config)).items()}
    size = sum(tensor.nbytes for tensor in tensors.values())
    if form != "safetensors":
        (large / "model.safetensors").unlink()
    if form == "ckpt.pt":
        transposed = {n: t.t().contiguous() if "c_" in n and t.dim() == 2 else t for n, t in tensors.items()}
        arguments = {"n_layer": 8, "n_head": 4, "n_embd": 256, "block_size": 64, "vocab_size": 50257, "bias": True}
        state = {name: {"exp_avg": tensor + 1, "exp_avg_sq": tensor + 2} for name, tensor in transposed.items()}
        torch.save({"model": transposed, "model_args": arguments, "optimizer": {"state": state}}, large / "ckpt.pt")
        large /= "ckpt.pt"
    elif form != "safetensors":
        torch.save(tensors, large / "pytorch_model.bin", _use_new_zipfile_serialization="new" in form)
    output, peak = kilobytes(small, large)
    assert output == "read"
    assert peak * 1024 < 1.2 * size
