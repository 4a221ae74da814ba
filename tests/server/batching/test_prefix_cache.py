"""The prefix cache finds equal beginnings and keeps within its bytes."""

import torch

from minigpt.server.batching.batch import PrefixCache

BLOCK = torch.zeros(4, dtype=torch.float32)  # 16 bytes


def filled(max_bytes: int, *prompts: list[int]) -> PrefixCache:
    cache = PrefixCache(2, max_bytes)
    for ids in prompts:
        cache.add(ids, lambda start, _end: BLOCK + start // 2)
    return cache


def test_only_whole_blocks_with_the_same_tokens_before_them_are_found() -> None:
    cache = filled(1000, [1, 2, 3, 4, 5])
    assert [int(block[0]) for block in cache.find([1, 2, 3, 4, 9, 9])] == [0, 1]
    assert len(cache.find([1, 2, 3])) == 1
    assert cache.find([9, 2, 3, 4]) == []
    assert cache.find([3, 4]) == []


def test_the_least_recently_used_blocks_are_dropped_the_last_of_a_prompt_first() -> None:
    cache = filled(48, [1, 2, 3, 4], [5, 6])
    cache.find([1, 2, 3, 4])
    cache.add([7, 8], lambda _start, _end: BLOCK)
    assert cache.n_bytes == 48
    assert cache.find([5, 6]) == []
    cache.add([9, 9], lambda _start, _end: BLOCK)
    assert len(cache.find([1, 2, 3, 4])) == 1
