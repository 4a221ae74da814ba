"""`minigpt serve` listens at once, loads, answers, and ends within a bounded time."""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from builders import random_model
from served import served_model
from typer.testing import CliRunner

from minigpt import shell
from minigpt.cli.app import app
from minigpt.errors import ConfigError, DeviceError
from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.optional_packages import EXTRAS
from minigpt.server.command import _example, _load, _within_memory
from minigpt.server.http_server import bind, run
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models, ServedModel
from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer


def saved(folder: Path, *names: str) -> Path:
    """A folder of tiny models with these names."""
    for name in names:
        save_checkpoint(folder / name, random_model(n_positions=64, std=0.1), Tokenizer.named("bytes"))
    return folder


@contextmanager
def serving(folder: Path, *options: str) -> "Iterator[tuple[subprocess.Popen[str], str, list[str]]]":
    """A server in a separate process, its address, and what it has printed."""
    command = [sys.executable, "-m", "minigpt", "serve", "--port", "0", "--checkpoints", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    assert process.stderr is not None
    lines = [process.stderr.readline()]

    def read() -> None:
        assert process.stderr is not None
        lines.extend(process.stderr)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield process, lines[0].split(" ")[0], lines
    finally:
        process.kill()
        reading.join()
        process.communicate()


def wait_until_loaded(url: str) -> None:
    request = urllib.request.Request(f"{url}/health")
    for _ in range(600):
        try:
            with urllib.request.urlopen(request, timeout=60):
                return
        except urllib.error.HTTPError as error:
            error.close()
            time.sleep(0.1)
    raise AssertionError("the models are not loaded after a minute")


def ask(url: str, **body: object) -> dict[str, object]:
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize(
    ("signals", "timeout", "code"),
    [([signal.SIGINT], "0.5", 130), ([signal.SIGTERM], "0.5", 0), ([signal.SIGINT] * 2, "300", 130)],
    ids=["ctrl-c", "sigterm", "twice"],
)
def test_a_served_model_answers_and_a_signal_ends_running_requests(
    tmp_path: Path, signals: list[int], timeout: str, code: int
) -> None:
    """After a second signal at once, otherwise after the timeout."""
    with serving(saved(tmp_path, "fox"), "--shutdown-timeout", timeout) as (process, url, lines):
        wait_until_loaded(url)
        assert ask(url, model="fox", prompt="a", max_tokens=3, seed=1)["usage"]["completion_tokens"] == 3  # type: ignore[index]
        endless = {"prompt": "a", "max_tokens": 100_000, "context": "slide", "stream": True}
        body = json.dumps({**endless, "logit_bias": {"256": -100}}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60) as response:
            response.readline()
            for number in signals:
                process.send_signal(number)
                time.sleep(0.3)
            rest = response.read().decode()
        assert "shutting down" in rest
        assert process.wait(timeout=60) == code
    assert any(line.startswith("curl http://127.0.0.1:") for line in lines)
    assert not any("Traceback" in line for line in lines)


def test_the_example_request_is_read_by_a_shell_as_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    config, url, model = ServeConfig(api_key="secret"), "http://127.0.0.1:8000", served_model('a "model"')
    body = json.dumps({"model": model.name, "prompt": "Once upon a time", "max_tokens": 50})
    monkeypatch.setattr(shell, "IS_CMD", False)
    script = f"curl() {{ printf '%s\\n' \"$@\"; }}; {_example(url, config, model)}"
    environment = os.environ | {"MINIGPT_API_KEY": "secret"}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=environment)
    words = [f"{url}/v1/completions", "-H", "Authorization: Bearer secret", "-H", "Content-Type: application/json"]
    assert done.stdout.splitlines() == [*words, "-d", body]
    monkeypatch.setattr(shell, "IS_CMD", True)
    example = _example(url, config, served_model("fox"))
    assert '-H "Authorization: Bearer %MINIGPT_API_KEY%" -H "Content-Type: application/json"' in example
    assert r'-d "{\"model\": \"fox\", ' in example


def test_the_example_request_for_a_model_without_a_tokenizer_has_ids() -> None:
    model = served_model("bare", tokenizer=Tokenizer(IdsOnly(size=40, end_id=7)))
    example = _example("http://127.0.0.1:8000", ServeConfig(), model)
    body = json.loads(shlex.split(example)[-1])
    assert body == {"model": "bare", "prompt": "0 1 2", "max_tokens": 50}


_LOADS_FOREVER = """
import sys, threading
import minigpt.server.command
from minigpt.cli import app

def load(*_):
    print("loading", file=sys.stderr, flush=True)
    threading.Event().wait()

minigpt.server.command._load = load
app.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)], ids=["ctrl-c", "sigterm"])
def test_a_signal_ends_a_server_that_is_still_loading(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-c", _LOADS_FOREVER, "serve", "--port", "0", "--checkpoints", str(saved(tmp_path, "a"))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any(line == "loading\n" for line in process.stderr)
            process.send_signal(number)
            assert process.wait(timeout=60) == code
            assert process.stderr.read() == ("minigpt: stopped\n" if code else "")
        finally:
            process.kill()


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    return line


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    folder = str(saved(tmp_path / "models", "fox", "hen"))
    saved(tmp_path / "others", "fox")
    assert "no model 'cow'" in refusal("cow", "--checkpoints", folder)
    assert "not both" in refusal("fox", "--all", "--checkpoints", folder)
    assert "served as 'fox'" in refusal("fox", str(tmp_path / "others" / "fox"), "--checkpoints", folder)
    assert "needs a key" in refusal("--host", "0.0.0.0", "--checkpoints", folder)
    assert "cannot listen" in refusal("--host", "203.0.113.1", "--api-key", "k", "--checkpoints", folder)
    assert "no model in" in refusal("--all", "--checkpoints", str(tmp_path / "empty"))


def test_a_missing_package_is_one_sentence_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXTRAS, "not_installed", "serve")
    monkeypatch.setattr("minigpt.server.command._PACKAGES", ("not_installed",))
    assert "needs not_installed" in refusal("--checkpoints", str(saved(tmp_path, "fox")))


def test_a_model_that_is_damaged_ends_the_server_with_one_sentence(tmp_path: Path) -> None:
    folder = saved(tmp_path, "fox")
    (folder / "fox" / "model.safetensors").write_bytes(b"damaged")
    with serving(folder) as (process, _, lines):
        assert process.wait(timeout=60) == 1
    assert "model.safetensors" in lines[-1]
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(
    ("free", "remedy"),
    [(10, "set --max-batch to at most 5"), (1, "serve a smaller model, or free memory")],
    ids=["some", "none"],
)
def test_missing_memory_for_texts_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, remedy: str
) -> None:
    monkeypatch.setattr("minigpt.generation.capacity.slot_bytes", lambda *_: 10**9)
    monkeypatch.setattr("minigpt.device.free_memory", lambda _: free * 10**9)
    folder = saved(tmp_path, "fox")
    with pytest.raises(ConfigError) as caught:
        _load("fox", folder / "fox", ServeConfig(), folder, "cpu", "float32", "auto")
    assert str(caught.value) == (
        "max_batch (16) texts of fox need 16.0 GB for keys and values, but may take only 50% of the "
        f"{free}.0 GB that are free; {remedy}"
    )


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (RuntimeError("a bug"), RuntimeError, "a bug"),
        (torch.OutOfMemoryError("CUDA out of memory"), ConfigError, "out of memory while loading fox; give"),
        (MemoryError(), ConfigError, "out of memory while loading fox; give"),
        (DeviceError("no cuda"), DeviceError, "no cuda"),
    ],
    ids=["bug", "cuda", "cpu", "user's"],
)
def test_a_model_that_fails_to_load_ends_the_server_with_its_error(
    error: Exception, raised: type[Exception], message: str
) -> None:
    def load() -> ServedModel:
        raise error

    config = ServeConfig(port=0)
    models = Models(lambda: [_within_memory("fox", load)])
    with bind(config) as listening, pytest.raises(raised, match=message):
        run(listening, config, models, on_loaded=lambda _: None, log=lambda _: None)


def test_writes_to_clients_that_have_left_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    models = Models(lambda: [][0])
    with bind(ServeConfig(port=0)) as listening, pytest.raises(IndexError):
        run(listening, ServeConfig(), models, on_loaded=lambda _: None, log=lambda _: None)
    logging.getLogger("asyncio").warning("socket.send() raised exception.")  # asyncio's own words
    assert not caplog.records
