"""Importing from the Hugging Face hub: downloads, its cache, and failures of the network."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import assert_same_model, new_model
from huggingface_hub.utils.sha import git_hash

from minigpt.errors import CheckpointError, TokenizerError
from minigpt.model.gpt import GPT
from minigpt.pretrained.gpt2 import import_gpt2, load_gpt2
from minigpt.storage.checkpoint import load_checkpoint, save_checkpoint
from minigpt.storage.huggingface import to_huggingface
from minigpt.storage.tensors import save_tensors
from minigpt.tokenizer.tokenizer import Tokenizer

OLDER = "1" * 40
GPT2_MEDIUM, TINY = "openai-community/gpt2-medium", "someone/tiny"


def small_model(seed: int, vocab_size: int) -> GPT:
    return new_model(seed=seed, vocab_size=vocab_size, n_positions=8, n_embd=4, n_layer=1, n_head=1)


class FakeHub(BaseHTTPRequestHandler):
    """Serves the files of a few repositories like the hub, and records the requests."""

    protocol_version = "HTTP/1.1"
    repositories: dict[str, dict[str, bytes]]
    requests: list[tuple[str, str]]  # method, file
    corrupt: set[str]  # files whose content does not match the hash
    endpoint: str

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0].removeprefix("/")
        kind = next((kind for kind in ("tree", "revision", "resolve") if f"/{kind}/" in path), "revision")
        repository, _, rest = path.removeprefix("api/models/").partition(f"/{kind}/")
        revision, _, name = (rest or "main").partition("/")
        self.requests.append((self.command, name))
        if repository == "someone/gated":
            return self.refuse(403, "GatedRepo")
        if repository not in self.repositories:
            return self.refuse(404, "RepoNotFound")
        if revision not in ("main", "v1") and len(revision) < 40:
            return self.refuse(404, "RevisionNotFound")
        files = self.repositories[repository]
        hashes = {name: git_hash(data) for name, data in files.items()}
        commit = OLDER if revision in ("v1", OLDER) else git_hash(json.dumps(hashes).encode())
        if kind == "tree":
            tree = [{"type": "file", "path": name, "size": len(files[name]), "oid": hashes[name]} for name in files]
            return self.send(json.dumps(tree).encode())
        if kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            return self.send(json.dumps({"id": repository, "sha": commit, "siblings": siblings}).encode())
        if name not in files:
            return self.refuse(404, "EntryNotFound")
        tag = hashlib.sha256(files[name]).hexdigest() if "safetensors" in name else hashes[name]
        content = bytes(len(files[name])) if name in self.corrupt else files[name]
        return self.send(content, {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}, with_body=with_body)

    def send(self, content: bytes, headers: dict[str, str] = {}, *, with_body: bool = True) -> None:  # noqa: B006
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", OLDER)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serve(repositories: dict[str, dict[str, bytes]]) -> Iterator[type[FakeHub]]:
    handler: Any = type("Handler", (FakeHub,), {"repositories": repositories, "requests": [], "corrupt": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    handler.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A local hub with a small model under the name of OpenAI's medium one, and another with byte tokens."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    medium = save_checkpoint(tmp_path / "hub" / "medium", small_model(0, 50257), Tokenizer.named("gpt2"))
    tiny = save_checkpoint(tmp_path / "hub" / "tiny", small_model(1, 257), Tokenizer.named("bytes"))
    repositories = {
        GPT2_MEDIUM: {name: data for name, data in files_of(medium).items() if not name.startswith("tokenizer")},
        TINY: files_of(tiny) | {"README.md": b"tiny", "tf_model.h5": b"another form", "pytorch_model.bin": b"another"},
    }
    with serve(repositories) as handler:
        monkeypatch.setattr(constants, "ENDPOINT", handler.endpoint)
        template = handler.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        disable_progress_bars()
        yield handler
        enable_progress_bars()


def downloaded(hub: Any) -> list[str]:
    return [name for method, name in hub.requests if method == "GET" and name]


def test_a_name_is_downloaded_from_the_hub(tmp_path: Path, hub: Any) -> None:
    imported = import_gpt2("gpt2-medium", checkpoints=tmp_path / "to", device="cpu")
    assert imported.source == GPT2_MEDIUM
    assert imported.checkpoint.directory == tmp_path / "to" / "gpt2-medium"
    assert imported.checkpoint.tokenizer.name == "gpt2"
    assert_same_model(load_checkpoint(tmp_path / "to" / "gpt2-medium", "cpu").model, small_model(0, 50257))
    assert sorted(downloaded(hub)) == ["config.json", "model.safetensors"]


def test_any_model_on_the_hub_is_downloaded_with_only_the_files_it_needs(tmp_path: Path, hub: Any) -> None:
    imported = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert imported.checkpoint.directory == tmp_path / "to" / "tiny"
    assert imported.checkpoint.tokenizer.name == "bytes"
    assert_same_model(imported.checkpoint.model, small_model(1, 257))
    assert not {"README.md", "tf_model.h5", "pytorch_model.bin"} & set(downloaded(hub))


def test_pickled_weights_are_downloaded_if_there_are_no_others(tmp_path: Path, hub: Any) -> None:
    files = hub.repositories[TINY]
    weights = {name: tensor.contiguous() for name, tensor in to_huggingface(small_model(1, 257)).items()}
    torch.save(weights, tmp_path / "weights")
    files["pytorch_model.bin"] = (tmp_path / "weights").read_bytes()
    del files["model.safetensors"]
    imported = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert_same_model(imported.checkpoint.model, small_model(1, 257))


def test_all_parts_of_sharded_weights_are_downloaded(tmp_path: Path, hub: Any) -> None:
    files = hub.repositories[TINY]
    del files["model.safetensors"]
    files |= in_shards(small_model(1, 257), tmp_path)
    imported = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert_same_model(imported.checkpoint.model, small_model(1, 257))
    places = json.loads(files["model.safetensors.index.json"])["weight_map"] | {"lm_head.weight": "../../../secret"}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CheckpointError, match=r"names '../../../secret', which must be a file in the same folder"):
        import_gpt2(TINY, name="other", checkpoints=tmp_path / "to", device="cpu")


def in_shards(model: GPT, tmp_path: Path) -> dict[str, bytes]:
    """The weights of a model, each tensor in a file, and their index."""
    files, places = {}, {}
    for number, (name, tensor) in enumerate(to_huggingface(model).items()):
        save_tensors(tmp_path / "part", {name: tensor})
        places[name] = f"model-{number}.safetensors"
        files[places[name]] = (tmp_path / "part").read_bytes()
    return files | {"model.safetensors.index.json": json.dumps({"weight_map": places}).encode()}


def test_every_file_is_from_the_commit_of_the_revision(tmp_path: Path, hub: Any) -> None:
    import_gpt2(TINY, revision="v1", checkpoints=tmp_path / "to", device="cpu")
    assert [path.name for path in (tmp_path / "cache" / "models--someone--tiny" / "snapshots").iterdir()] == [OLDER]
    with pytest.raises(CheckpointError, match=r"^someone/tiny has no revision 'v9'; give a branch, a tag or a commit$"):
        import_gpt2(TINY, revision="v9", checkpoints=tmp_path / "to", device="cpu")


def test_an_existing_import_is_not_downloaded_again(tmp_path: Path, hub: Any) -> None:
    first = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    shutil.rmtree(tmp_path / "cache")
    hub.requests.clear()
    again = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert downloaded(hub) == []
    assert again.notes == ("already imported; the hub has the same version",)
    assert_same_model(again.checkpoint.model, first.checkpoint.model)


@pytest.mark.parametrize("tokenizer", [None, "none"])
def test_an_existing_import_with_another_tokenizer_is_not_taken_for_the_same(
    tmp_path: Path, hub: Any, tokenizer: str | None
) -> None:
    import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu", tokenizer="none" if tokenizer is None else None)
    with pytest.raises(CheckpointError, match="tiny holds something else; remove it or choose another --name"):
        import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu", tokenizer=tokenizer)


def test_another_version_on_the_hub_does_not_match_the_existing_import(tmp_path: Path, hub: Any) -> None:
    import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    other = save_checkpoint(tmp_path / "other", small_model(2, 257), Tokenizer.named("bytes"))
    hub.repositories[TINY]["model.safetensors"] = (other / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CheckpointError, match="tiny holds something else; remove it or choose another --name"):
        import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])  # the hub hashes them in two ways
def test_a_file_with_a_wrong_hash_is_named_and_nothing_is_written(tmp_path: Path, hub: Any, name: str) -> None:
    hub.corrupt.add(name)
    with pytest.raises(CheckpointError, match=f"^{name} of someone/tiny is damaged: its hash is ") as refused:
        import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert not (tmp_path / "to").exists()
    blob = Path(str(refused.value).partition("remove ")[2].partition(" and try")[0])
    hub.corrupt.clear()
    blob.unlink()
    assert import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu").checkpoint.tokenizer.name == "bytes"


def test_offline_the_cache_suffices(tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    imported = import_gpt2(TINY, name="again", checkpoints=tmp_path / "to", device="cpu")
    assert_same_model(imported.checkpoint.model, small_model(1, 257))
    assert hub.requests == []
    with pytest.raises(CheckpointError, match=r"^openai-community/gpt2 could not be downloaded .*offline.*--from PATH"):
        import_gpt2("gpt2", checkpoints=tmp_path / "to")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt2-xl", "the hub has no model 'openai-community/gpt2-xl' and there is no such path; "),
        ("gpt2-meduim", "the hub has no model 'gpt2-meduim' and there is no such path; did you mean 'gpt2-medium'?"),
        (
            "nobody/nothing",
            "the hub has no model 'nobody/nothing' and there is no such path; a private one needs a tok",
        ),
        (
            "someone/gated",
            "someone/gated is gated: request access at https://huggingface.co/someone/gated, then set your",
        ),
        ("someone/empty", "someone/empty has no config.json, so it is not a model of transformers"),
        ("someone/adapter", "someone/adapter is a LoRA adapter; download it with `hf download someone/adapter --local"),
        ("someone/minigpts-adapter", "someone/minigpts-adapter is a LoRA adapter; download it with `hf download some"),
        ("someone/unweighted", "someone/unweighted has none of model.safetensors, model.safetensors.index.json, pyt"),
        (
            "out/ckpt.pt",
            "model ('out/ckpt.pt') must be gpt2, gpt2-medium, gpt2-large, gpt2-xl, a model's name on the hub",
        ),
        (
            "one/two/three",
            "model ('one/two/three') must be gpt2, gpt2-medium, gpt2-large, gpt2-xl, a model's name on the hub",
        ),
    ],
)
def test_a_model_or_file_missing_on_the_hub_gives_a_one_sentence_error(
    tmp_path: Path, hub: Any, name: str, message: str
) -> None:
    config = {"config.json": b"{}"}
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
    hub.repositories |= {"someone/empty": {}, "someone/unweighted": config}
    hub.repositories |= {"someone/adapter": adapter, "someone/minigpts-adapter": config | adapter}
    with pytest.raises(CheckpointError) as refused:
        load_gpt2(name, checkpoints=tmp_path / "to")
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "to").exists()


def test_offline_a_cache_of_some_files_suffices_if_a_tokenizer_is_among_them(
    tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a model with 50,257 tokens of another vocabulary would get GPT-2's."""
    from huggingface_hub import constants

    hub.repositories[TINY] = files_of(
        save_checkpoint(tmp_path / "padded", small_model(1, 50257), Tokenizer.named("bytes"))
    )
    import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    cache = (tmp_path / "cache").rename(tmp_path / "partial")  # as after `hf download` of files, which lists no others
    (repository,) = cache.glob("models--*")
    shutil.rmtree(repository / "trees")
    (snapshot,) = (repository / "snapshots").iterdir()
    for path in snapshot.iterdir():
        if path.name not in ("config.json", "model.safetensors", "tokenizer.json"):
            path.unlink()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    imported = import_gpt2(TINY, name="again", checkpoints=tmp_path / "to", device="cpu")
    assert imported.checkpoint.tokenizer.vocab_size == 257
    (snapshot / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"^someone/tiny could not be downloaded \(the hub's cache has no tok"):
        import_gpt2(TINY, name="third", checkpoints=tmp_path / "to", device="cpu")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt"])
def test_tokenizers_of_other_kinds_are_downloaded_and_never_replaced_by_gpt2s(
    tmp_path: Path, hub: Any, name: str
) -> None:
    files = files_of(save_checkpoint(tmp_path / "own", small_model(1, 50257), Tokenizer.named("bytes")))
    hub.repositories[TINY] = {kept: files[kept] for kept in ("config.json", "model.safetensors")} | {name: b"tokens"}
    if name == "vocab.txt":
        hub.repositories[TINY] |= {name: b"[UNK]\n[SEP]\nB\nb\n", "tokenizer_config.json": b'{"do_lower_case": false}'}
        imported = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
        assert imported.checkpoint.tokenizer.encode("B b") == [2, 3]
        return
    with pytest.raises(TokenizerError, match=f"{name} cannot be used: it "):
        import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")


def test_the_chat_template_in_its_own_file_is_downloaded(tmp_path: Path, hub: Any) -> None:
    hub.repositories[TINY]["chat_template.jinja"] = b"{{ messages }}"
    imported = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert imported.checkpoint.tokenizer.chat_template == "{{ messages }}"
    assert load_checkpoint(tmp_path / "to" / "tiny", "cpu").tokenizer.chat_template == "{{ messages }}"


def test_gpt2s_vocabulary_is_noted_as_an_assumption_except_for_openais_models(tmp_path: Path, hub: Any) -> None:
    assert import_gpt2("gpt2-medium", checkpoints=tmp_path / "to", device="cpu").notes == ()
    hub.repositories[TINY] = hub.repositories[GPT2_MEDIUM]
    for name in [name for name in hub.repositories[TINY] if name in ("vocab.json", "merges.txt")]:
        del hub.repositories[TINY][name]
    imported = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert imported.notes == ("no tokenizer next to the weights: GPT-2's vocabulary is assumed",)


def test_without_a_network_the_existing_import_is_compared_with_the_cache(
    tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    save_checkpoint(tmp_path / "to" / "other", small_model(2, 257), Tokenizer.named("bytes"))
    from huggingface_hub import constants

    nowhere = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    template = nowhere + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    again = import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")
    assert again.notes[0].startswith("the hub cannot be reached (")
    assert again.notes[0].endswith("; already imported, and the hub's cache has the same model")
    assert_same_model(again.checkpoint.model, small_model(1, 257))
    with pytest.raises(CheckpointError, match="other holds something else"):
        import_gpt2(TINY, name="other", checkpoints=tmp_path / "to", device="cpu")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CheckpointError, match=r"^someone/tiny could not be downloaded \((?!.*cache)"):
        import_gpt2(TINY, checkpoints=tmp_path / "to", device="cpu")


def test_a_source_may_be_a_name_on_the_hub(tmp_path: Path, hub: Any) -> None:
    imported = import_gpt2(source=TINY, checkpoints=tmp_path / "to", device="cpu")
    assert imported.source == TINY
    assert imported.checkpoint.directory == tmp_path / "to" / "tiny"
    assert f"from `{TINY}`" in (tmp_path / "to" / "tiny" / "README.md").read_text()
    named = import_gpt2("mine", source=TINY, revision="v1", checkpoints=tmp_path / "to", device="cpu")
    assert named.checkpoint.directory == tmp_path / "to" / "mine"


_IMPORT = """
import sys, minigpt
print(minigpt.load_gpt2("someone/tiny", checkpoints=sys.argv[1], device="cpu").directory)
"""


@pytest.mark.slow
def test_two_processes_can_import_the_same_model_at_the_same_time(tmp_path: Path, hub: Any) -> None:
    variables = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "shared")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _IMPORT, str(tmp_path / "to")], env=variables, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    assert_same_model(load_checkpoint(tmp_path / "to" / "tiny", "cpu").model, small_model(1, 257))
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["tiny"]


def no_network() -> BaseException:
    from huggingface_hub.errors import LocalEntryNotFoundError

    error = LocalEntryNotFoundError("An error happened.\nPlease check your connection.")
    error.__cause__ = ConnectionError("[Errno -2] Name or service not known")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (no_network, "(Name or service not known); offline, give a local copy with --from PATH; set a mirror with"),
        (
            lambda: OSError(errno.ENOSPC, "No space left on device"),
            "(No space left on device); free some space, or move the hub's cache with HF_HOME",
        ),
    ],
)
def test_the_error_of_a_failed_download_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, message: str
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error()

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)
    with pytest.raises(CheckpointError) as refused:
        load_gpt2("gpt2", checkpoints=tmp_path)
    assert str(refused.value).startswith(f"openai-community/gpt2 could not be downloaded {message}")
    assert "\n" not in str(refused.value)
