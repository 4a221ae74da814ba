"""The event hub counts the texts that the server still has to generate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from served import served_model

from minigpt.config import SamplingConfig
from minigpt.generation.batching.requests import GenerationRequest
from minigpt.generation.sampling import Sampler
from minigpt.server.api_error import ApiError
from minigpt.server.event_hub import EventHub
from minigpt.server.metrics import Metrics
from minigpt.server.serve_config import ServeConfig
from minigpt.tokenizer.tokenizer import Tokenizer


def new_request(tokens: int, *, samples: int = 1, **fields: Any) -> GenerationRequest:
    config = SamplingConfig(max_new_tokens=tokens, samples=samples, logit_bias=("#256=-100",), seed=1)
    return GenerationRequest([97], config, Sampler(config, Tokenizer.named("bytes")), **fields)


@asynccontextmanager
async def working_hub() -> AsyncIterator[EventHub]:
    """A hub that accepts four texts."""
    hub = EventHub(ServeConfig(max_batch=2, max_queue=2), Metrics())
    hub.start()
    try:
        yield hub
    finally:
        await hub.stop()


@pytest.mark.parametrize(
    "asked",
    [new_request(3, samples=4), new_request(1, continues=False), new_request(1, samples=3, continues=False)],
    ids=["texts", "prompt", "copies of a prompt"],
)
def test_a_text_that_has_ended_does_not_count(asked: GenerationRequest) -> None:
    async def check() -> None:
        async with working_hub() as hub:
            async with hub.running(served_model("tiny"), [asked]) as steps:
                assert hub.n_texts == asked.n_texts
                assert [event.is_last async for step in steps for event in step][-1]
                assert hub.n_texts == 0  # while its answer is being sent
                hub.check_accepts(1)
            assert hub.n_texts == 0

    asyncio.run(check())


def test_a_text_counts_until_it_ends_or_its_client_leaves() -> None:
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
                hub.check_accepts(1)
            assert hub.n_texts == 0

    asyncio.run(check())


def test_texts_are_accepted_while_there_is_room_for_all_of_them() -> None:
    async def check() -> None:
        endless = new_request(1_000_000, samples=3)
        async with working_hub() as hub, hub.running(served_model("tiny"), [endless]):  # a hub for four texts
            with pytest.raises(ApiError, match="3 texts are being generated"):
                hub.check_accepts(2)
            hub.check_accepts(1)

    asyncio.run(check())
