"""safetensors files: read, memory-mapped, replaced, truncated and damaged."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minigpt.errors import CheckpointError
from minigpt.storage import tensors
from minigpt.storage.tensors import TensorFile, load_tensors, save_tensors


def samples() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(3, 5, generator=generator)
    return {
        "one_byte": torch.tensor([True, False, True]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "transposed": random.t(),
        "slice": random[:, 1:3],
        "half": random.half(),
        "bfloat16": random.bfloat16(),
        "double": random.double(),
        "state": torch.arange(7, dtype=torch.uint8),
        "counts": torch.tensor([-(2**62), 7]),
        "parameter": torch.nn.Parameter(random.clone()),
    }


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_tensors_of_every_dtype_and_layout_are_read_back_equal(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", samples(), {"progress": '{"step": 3}'})
    found, metadata = load_tensors(tmp_path / "file")
    assert_same(found, samples())
    assert metadata == {"progress": '{"step": 3}'}


def test_files_are_interchangeable_with_the_safetensors_library(tmp_path: Path) -> None:
    save_tensors(tmp_path / "ours", samples())
    assert_same(load_file(tmp_path / "ours"), samples())
    save_file({name: tensor.detach().contiguous() for name, tensor in samples().items()}, tmp_path / "theirs")
    assert_same(load_tensors(tmp_path / "theirs")[0], samples())


def test_every_tensor_is_aligned(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", samples())
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    for name, fields in header.items():
        assert (8 + length + fields["data_offsets"][0]) % samples()[name].element_size() == 0, name


def test_a_flipped_bit_in_any_tensor_or_entry_of_the_header_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors(path, samples(), {"step": "12"})
    content = path.read_bytes()
    with TensorFile(path) as file:
        assert file.verify() == len(samples())
        assert file.metadata == {"step": "12"}
    data = 8 + int.from_bytes(content[:8], "little")
    for position in (*range(data, len(content)), content.index(b'"12"') + 1):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"is damaged: its .* changed after it was saved"):
            load_tensors(path)


def test_a_file_of_another_program_has_no_checksums_and_loads(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "file", {"format": "pt"})
    with TensorFile(tmp_path / "file") as file:
        assert file.verify() == 0
        assert torch.equal(file.read("a"), torch.ones(2))


def test_a_read_that_reuses_the_buffer_is_valid_until_the_next_one(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", samples())
    with TensorFile(tmp_path / "file") as file:
        for name in file.shapes:
            assert torch.equal(file.read(name, reuse_buffer=True), samples()[name]), name
        first = file.read("counts", reuse_buffer=True)
        kept = file.read("counts")
        file.read("state", reuse_buffer=True)
        assert not torch.equal(first, samples()["counts"])
        assert torch.equal(kept, samples()["counts"])


def test_an_open_file_stays_the_same_when_another_replaces_it(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {"a": torch.zeros(100_000)})
    with TensorFile(tmp_path / "file") as file:
        save_tensors(tmp_path / "file", {"a": torch.ones(100_000)})
        assert torch.equal(file.read("a"), torch.zeros(100_000))


def test_a_file_truncated_while_open_gives_a_one_sentence_error(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {"a": torch.zeros(10_000)})
    with TensorFile(tmp_path / "file") as file:
        os.truncate(tmp_path / "file", 5_000)
        with pytest.raises(CheckpointError, match="was truncated while it was read"):
            file.read("a")


def test_map_returns_the_tensor_or_none_for_another_dtype(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", samples())
    with TensorFile(tmp_path / "file") as file:
        mapped = {
            name: (found, other)
            for name, tensor in samples().items()
            for found, other in [(file.tensors[name].map(tensor.dtype), file.tensors[name].map(torch.int32))]
        }
        with pytest.raises(KeyError):
            file.tensors["nothing"].map(torch.float32)
    empty, _ = mapped.pop("empty")
    assert empty is None
    for name, (found, other) in mapped.items():  # after the file has been closed
        assert found is not None
        assert found.dtype == samples()[name].dtype
        assert torch.equal(found, samples()[name]), name
        assert other is None


def test_on_windows_no_tensor_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows does not replace a mapped file, so a run could not save while a session has its model open."""
    monkeypatch.setattr(tensors, "_MAPS_FILES", False)
    save_tensors(tmp_path / "file", samples())
    with TensorFile(tmp_path / "file") as file:
        assert {file.tensors[name].map(tensor.dtype) for name, tensor in samples().items()} == {None}


def test_writing_to_a_mapped_tensor_changes_neither_the_file_nor_another_mapping(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {"a": torch.arange(10.0), "b": torch.ones(3)})
    before = (tmp_path / "file").read_bytes()
    with TensorFile(tmp_path / "file") as file, TensorFile(tmp_path / "file") as other:
        mapped, second = file.tensors["a"].map(torch.float32), other.tensors["a"].map(torch.float32)
        assert mapped is not None
        assert second is not None
        mapped.fill_(7)
        assert torch.equal(second, torch.arange(10.0))
        assert torch.equal(file.read("a"), torch.arange(10.0))
    assert (tmp_path / "file").read_bytes() == before


def test_an_unaligned_tensor_is_not_mapped(tmp_path: Path) -> None:
    header = {
        "aligned": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]},
        "unaligned": {"dtype": "F32", "shape": [2], "data_offsets": [9, 17]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = struct.pack("<2f", 1.5, -2.5)
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + values + b"\x07" + values)
    with TensorFile(tmp_path / "file") as file:
        aligned = file.tensors["aligned"].map(torch.float32)
        assert aligned is not None
        assert aligned.tolist() == [1.5, -2.5]
        assert file.tensors["unaligned"].map(torch.float32) is None
        assert file.read("unaligned").tolist() == [1.5, -2.5]


def test_mapped_tensors_stay_the_same_when_another_file_replaces_theirs(tmp_path: Path) -> None:
    save_tensors(tmp_path / "file", {"a": torch.zeros(100_000), "b": torch.full((9,), 3.0)})
    with TensorFile(tmp_path / "file") as file:
        first = file.tensors["a"].map(torch.float32)
        save_tensors(tmp_path / "file", {"a": torch.ones(100_000), "b": torch.ones(9)})
        second = file.tensors["b"].map(torch.float32)
    assert first is not None
    assert second is not None
    assert not first.any()
    assert second.tolist() == [3.0] * 9


@pytest.mark.parametrize("length", [5_000, 0])
def test_a_truncated_file_is_not_mapped(tmp_path: Path, length: int) -> None:
    save_tensors(tmp_path / "file", {"a": torch.zeros(10_000)})
    with TensorFile(tmp_path / "file") as file:
        os.truncate(tmp_path / "file", length)
        with pytest.raises(CheckpointError, match="was truncated while it was read"):
            file.tensors["a"].map(torch.float32)


def test_a_missing_file_and_a_folder_are_refused_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file does not exist"):
        TensorFile(tmp_path / "file")
    with pytest.raises(CheckpointError, match=rf"{tmp_path} could not be read \(is a directory\)"):
        TensorFile(tmp_path)


def header(entries: object, data: bytes = b"\0" * 16) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: tuple[int, ...] = (4,), offsets: tuple[int, int] = (0, 16)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"abc", "is truncated, corrupted or not safetensors"),
        (b"PK\x03\x04 a zip file of torch.save" * 10, "is truncated, corrupted or not safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a Git LFS pointer.*git lfs pull"),
        (struct.pack("<Q", 2**62) + b"{}", "is truncated, corrupted or not safetensors"),
        (struct.pack("<Q", 8) + b"{not it}", "is truncated, corrupted or not safetensors"),
        (header({"a": entry()}, b"\0" * 15), "is truncated, corrupted or not safetensors"),
        (header({"a": entry(offsets=(0, 12))}), "is truncated, corrupted or not safetensors"),
        (header({"a": entry(), "b": entry()}), "is truncated, corrupted or not safetensors"),
        (header({"a": entry(offsets=(2**40, 2**40 + 16))}), "is truncated, corrupted or not safetensors"),
        (
            header({"a": entry(dtype="F8_E4M3", shape=(16,))}),
            r"'a' in .* \(F8_E4M3\) must be one of F64, F32",
        ),
    ],
)
def test_damaged_or_other_content_gives_a_one_sentence_error_with_the_path(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as refused:
        TensorFile(tmp_path / "file")
    assert str(tmp_path / "file") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unknown_fields_in_the_header_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(header({"a": entry() | {"later": 1}}))
    assert torch.equal(load_tensors(tmp_path / "file")[0]["a"], torch.zeros(4))
