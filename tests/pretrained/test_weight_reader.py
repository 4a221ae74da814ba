"""What is said of formats of weights that edges read, where these are not installed."""

from pathlib import Path

import pytest

from minigpt import edges
from minigpt.config import GPTConfig
from minigpt.errors import CheckpointError
from minigpt.pretrained import huggingface
from minigpt.pretrained.open_model import describe_model, open_model
from minigpt.storage import adapters

CONFIG = GPTConfig(vocab_size=257, n_positions=8, n_embd=8, n_layer=1, n_head=1)


@pytest.fixture
def without_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the folders of all edges were deleted."""
    monkeypatch.setattr(edges.Edge, "is_installed", False)
    for module in (huggingface, adapters):
        monkeypatch.setattr(module, "provided", lambda _: ())


@pytest.mark.usefixtures("without_edges")
@pytest.mark.parametrize("name", ["model.gguf", "pytorch_model.bin", "ckpt.pt", "hparams.json"])
def test_a_file_of_an_edge_that_is_not_installed_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"GGUF\x03\0\0\0" if name.endswith("gguf") else b"PK\x03\x04\0\0\0\0")
    for given in (path, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            open_model(given)
        assert str(caught.value).endswith(
            "give a folder of Hugging Face's, or a .safetensors or .index.json file; importers is not installed: the "
            "package minigpt.importers is missing"
        )


@pytest.mark.usefixtures("without_edges")
def test_an_adapter_is_refused_without_the_edge_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"lora is not installed: the package minigpt\.lora is missing$"):
        describe_model(tmp_path)
