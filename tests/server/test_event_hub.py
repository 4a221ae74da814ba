"""The event hub counts the texts that the server still has to generate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from served import served_model

from minigpt.config import SamplingConfig
from minigpt.generation.sampling import Sampler
from minigpt.server.api_error import ApiError
from minigpt.server.batching.requests import GenerationRequest
from minigpt.server.event_hub import EventHub
from minigpt.server.serve_config import ServeConfig
from minigpt.server.served_model import Models
from minigpt.tokenizer.tokenizer import Tokenizer


def new_request(tokens: int, *, samples: int = 1, **fields: Any) -> GenerationRequest:
    config = SamplingConfig(max_new_tokens=tokens, samples=samples, logit_bias=("#256=-100",), seed=1)
    return GenerationRequest([97], config, Sampler(config, Tokenizer.named("bytes")), **fields)


@asynccontextmanager
async def working_hub() -> AsyncIterator[EventHub]:
    """A hub that accepts four texts."""
    hub = EventHub(ServeConfig(max_batch=2, max_queue=2), Models(list))
    hub.start()
    try:
        yield hub
    finally:
        await hub.stop()


def test_a_request_counts_until_it_ends_or_its_client_leaves() -> None:
    async def check() -> None:
        short, endless = new_request(2), new_request(1_000_000, samples=3)
        async with working_hub() as hub:
            async with hub.running(served_model("tiny"), [short, endless]) as steps:
                with pytest.raises(ApiError, match="4 texts are being generated"):
                    hub.check_accepts(1)
                async for step in steps:
                    if any(event.request is short and event.is_last for event in step):
                        break
                assert hub.n_texts == 3
                with pytest.raises(ApiError, match="3 texts are being generated"):
                    hub.check_accepts(2)
                hub.check_accepts(1)
            assert hub.n_texts == 0

    asyncio.run(check())


def test_an_answer_that_is_being_sent_does_not_count() -> None:
    async def check() -> None:
        async with working_hub() as hub, hub.running(served_model("tiny"), [new_request(3, samples=4)]) as steps:
            assert hub.n_texts == 4
            assert [event.is_last async for step in steps for event in step][-1]
            assert hub.n_texts == 0

    asyncio.run(check())
