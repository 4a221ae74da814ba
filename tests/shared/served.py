"""Servers of tiny models for the tests: in the process, and on a socket."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn
from builders import random_model
from starlette.testclient import TestClient

from minigpt.model.gpt import GPT
from minigpt.server.application import build_application
from minigpt.server.batching.batch import Batch
from minigpt.server.connections import limited_protocol
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models, ServedModel
from minigpt.slots.slots import Slots
from minigpt.tokenizer.tokenizer import Tokenizer

CONTEXT = 64


def served_model(
    name: str, *, seed: int = 0, model: GPT | None = None, tokenizer: Tokenizer | None = None, **options: Any
) -> ServedModel:
    """A random model on PyTorch's slot engine, by default with a token for each byte."""
    model = model or random_model(n_positions=CONTEXT, n_embd=32, std=0.2, seed=seed)
    batch = Batch(Slots(model, 4), tokenizer or Tokenizer.named("bytes"), prefix_cache_bytes=1_000_000)
    return ServedModel(name, 1_700_000_000, batch, **options)


def new_models(*names: str, **options: Any) -> Models:
    """Models that are not loaded yet; each has its own weights."""
    return Models(lambda: [served_model(name, seed=seed, **options) for seed, name in enumerate(names)])


@contextmanager
def new_client(*names: str, config: ServeConfig | None = None, **options: Any) -> Iterator[TestClient]:
    """A client of an application in this process, with loaded models."""
    models = new_models(*names, **options)
    models.load()
    application = build_application(models, config or ServeConfig(), lambda _: None)
    with TestClient(application, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


class SocketServer:
    """An application on a free port of this machine, in a thread."""

    def __init__(self, models: Models, config: ServeConfig, **limits: Any) -> None:
        self.application = build_application(models, config, lambda _: None)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        protocol = limited_protocol(config.max_connections, **limits)
        settings = uvicorn.Config(self.application, http=protocol, ws="none", log_config=None, lifespan="on",
                                  timeout_graceful_shutdown=2)  # fmt: skip
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=asyncio.run, args=(self._server.serve(sockets=[self.listening]),))

    def __enter__(self) -> "SocketServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def n_texts(self) -> int:
        """How many texts are being generated or wait for their turn."""
        return self.application.state.hub.n_texts

    @property
    def n_connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    def connect(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def send(self, path: str, body: object) -> socket.socket:
        """A connection on which a request was sent whose answer is not read yet."""
        connection = self.connect()
        connection.sendall(post(path, json.dumps(body).encode()))
        return connection

    def ask(self, raw: bytes) -> bytes:
        """What the server answers to these bytes until it closes the connection."""
        with closing(self.connect()) as connection:
            connection.sendall(raw)
            return read_all(connection)


def post(path: str, body: bytes, **headers: str) -> bytes:
    """A POST request, after which the server closes the connection."""
    fields = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(body)),
              "Connection": "close", **headers}  # fmt: skip
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def read_all(connection: socket.socket) -> bytes:
    """What arrives until the other side closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)
