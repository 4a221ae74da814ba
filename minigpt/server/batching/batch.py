"""The batch: the rows of many requests on one slot engine, one step after another; and its prefix cache."""

import hashlib
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from minigpt.device import to_device
from minigpt.errors import GenerationError, MinigptError
from minigpt.generation.decoding import GeneratedToken, describe
from minigpt.generation.sampling import check_finite
from minigpt.server.batching.requests import Event, Failed, GenerationRequest, ScoredPrompt, check_request
from minigpt.server.batching.rows import Row, Work, next_tokens
from minigpt.slots.slots import Chunk, Slots
from minigpt.tokenizer.tokenizer import Tokenizer

_PROMPT_ALONE = 64  # tokens of prompts that a step reads if no row is waiting for its next token


class Batch:
    """Continues many requests at once; requests join and leave at every step.

    Each `step` admits waiting rows to free slots, reads one token of every row that generates and a part of the prompts
    of new rows, and samples. A long prompt therefore delays the other rows only a little in each step. The part is up
    to `prompt_tokens` tokens if the engine's bits do not depend on how a prompt is divided (`any_chunks`). Otherwise it
    is whole chunks of up to `chunk_size` tokens, until they have `prompt_tokens`.

    The rows of one request share the work on its prompt, and prompts that begin alike share it through the prefix
    cache. A request gets the tokens and log-probabilities that it would get alone.

    The engine's model must be in eval mode. All methods must be called by the same thread.
    """

    def __init__(
        self, engine: Slots, tokenizer: Tokenizer, *, prompt_tokens: int = 16, prefix_cache_bytes: int = 0
    ) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.prompt_tokens = prompt_tokens
        self.prefixes = PrefixCache(engine.chunk_size, prefix_cache_bytes)
        self.n_prompt_tokens = 0  # that were computed
        self.n_cached_tokens = 0  # of prompts that were found in the prefix cache
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []  # in slots, in the order of admission
        self._free = list(reversed(range(engine.n_slots)))

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._rows)

    @property
    def n_running(self) -> int:
        """How many rows are in slots."""
        return len(self._rows)

    def add(self, request: GenerationRequest) -> None:
        """Puts a request at the end of the queue.

        Raises: ConfigError if the model cannot answer it, as `check_request` says.
        """
        n_positions = self.engine.n_positions
        check_request(request, n_positions)
        work = Work(request, rows_left=request.n_rows, rows_waiting=request.n_rows)
        self._waiting.extend(Row(work, sample, self.tokenizer, n_positions) for sample in range(request.n_rows))

    def cancel(self, request: GenerationRequest) -> None:
        """Drops the rows of a request, which gets no more events. Does nothing if it has ended."""
        self._waiting = deque(row for row in self._waiting if row.request is not request)
        for row in [row for row in self._rows if row.request is request]:
            self._release(row)

    def clear(self) -> None:
        """Drops all requests."""
        self._waiting.clear()
        for row in list(self._rows):
            self._release(row)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Reads the next tokens of the rows in slots and samples: -> what is new for their requests."""
        self._admit()
        chosen = self._plan()
        read = self.engine.read([chunk for _, chunk in chosen]) if chosen else []
        events: list[Event] = []
        ready: list[tuple[Row, Tensor]] = []  # rows with the logits (1, V) of their next token
        for (row, chunk), logits in zip(chosen, read, strict=True):
            ready += self._take(row, chunk, logits[:, : self.tokenizer.vocab_size], events)
        ready += [(row, row.work.logits) for row in self._rows if self._starts_now(row) and row.work.logits is not None]
        for row, _ in ready:
            self._start(row)
        if ready:
            logits = torch.cat([each for _, each in ready])  # (R, V)
            tokens = next_tokens([row for row, _ in ready], logits)
            for (row, _), token in zip(ready, tokens, strict=True):
                self._append(row, token, events)
        return events

    # Admission

    def _admit(self) -> None:
        """Gives free slots to waiting rows, first to those of the request that has the fewest rows in slots."""
        n_running = Counter(row.request for row in self._rows)
        while self._free and self._waiting:
            row = min(self._waiting, key=lambda row: n_running[row.request])
            self._waiting.remove(row)
            n_running[row.request] += 1
            row.slot = self._free.pop()
            self._rows.append(row)

    def _release(self, row: Row) -> None:
        self._rows.remove(row)
        self._free.append(row.slot)

    def _starts_now(self, row: Row) -> bool:
        """Whether sample 0 has read a row's prompt for it, so that it can copy the keys and values and begin."""
        return row.n_read == 0 and row.n_new == 0 and row.work.saved is not None

    def _start(self, row: Row) -> None:
        """Gives a row that is about to generate its first token the prompt's keys and values, or shares its own."""
        if row.n_new > 0:
            return
        work = row.work
        work.rows_waiting -= 1
        if row.n_read == 0:
            assert work.saved is not None
            self.engine.load(row.slot, 0, work.saved)
            row.n_read = len(row.visible)
        if work.rows_waiting == 0:
            work.saved = work.logits = None

    # Reading

    def _plan(self) -> list[tuple[Row, Chunk]]:
        """What this step reads: the next token of every row that generates, and parts of prompts."""
        generating = [row for row in self._rows if row.n_unread == 1 and row.n_new > 0]
        chosen = [(row, row.chunk(1)) for row in generating]
        left = self.prompt_tokens if generating else max(self.prompt_tokens, _PROMPT_ALONE)
        for row in self._rows:
            if left <= 0:
                break
            if row in generating or (row.n_new == 0 and row.sample > 0):  # sample 0 reads the prompt for all
                continue
            self._load_cached(row)
            if self._is_read_by_another(row):
                continue
            size = self._chunk_size(row, left)
            chosen.append((row, row.chunk(size)))
            left -= size
        return chosen

    def _chunk_size(self, row: Row, left: int) -> int:
        """How many tokens of a prompt to read; where the results depend on it, always up to the same positions."""
        if self.engine.any_chunks:
            return min(left, row.n_unread)
        return min(self.engine.chunk_size - row.n_read % self.engine.chunk_size, row.n_unread)

    def _take(self, row: Row, chunk: Chunk, logits: Tensor, events: list[Event]) -> list[tuple[Row, Tensor]]:
        """Counts what a row has read, and returns the row with its logits if it can be sampled."""
        row.n_read += len(chunk.ids)
        if row.n_new > 0:
            return [(row, logits[-1:])] if row.n_unread == 0 else []
        self.n_prompt_tokens += len(chunk.ids)
        self._keep_prefix(row)
        if row.request.score_prompt:
            try:
                self._score(row, chunk, logits)
            except GenerationError as error:
                self._fail(row.request, error, events)
                return []
        if row.n_unread > 0:
            return []
        if row.request.score_prompt or not row.request.continues:
            scores = tuple(row.work.scores)
            events.append(Event(row.request, ScoredPrompt(scores), is_last=not row.request.continues))
        if not row.request.continues:
            self._release(row)
            return []
        if row.work.rows_waiting > 1:
            row.work.logits = logits[-1:].clone()  # without the memory of the other rows
            row.work.saved = self.engine.save(row.slot, 0, row.n_read)
        return [(row, logits[-1:])]

    def _score(self, row: Row, chunk: Chunk, logits: Tensor) -> None:
        """Scores the prompt's tokens after each of those that were read: logits (T, V).

        Raises: GenerationError for logits that are NaN or infinite.
        """
        check_finite(logits)
        scores = row.work.scores
        if not scores:
            scores.append(GeneratedToken(row.visible[0]))
        following = row.visible[chunk.start + 1 : chunk.start + 1 + len(chunk.ids)]
        targets = to_device(torch.tensor(following, dtype=torch.int64), logits.device)
        scores += describe(logits[: len(following)], targets, row.request.alternatives or 0)

    # The prefix cache

    def _load_cached(self, row: Row) -> None:
        """Copies what the prefix cache has of a row's prompt after what it has read. Scores need every logit."""
        block = self.engine.chunk_size
        if row.n_new > 0 or row.n_read % block or row.request.score_prompt:
            return
        blocks = self.prefixes.find(row.visible[:-1])[row.n_read // block :]
        for saved in blocks:
            self.engine.load(row.slot, row.n_read, saved)
            row.n_read += block
        self.n_cached_tokens += block * len(blocks)

    def _is_read_by_another(self, row: Row) -> bool:
        """Whether an earlier row is reading the same block of the same prompt, so that the cache will have it soon."""
        block = self.engine.chunk_size
        end = row.n_read + block
        if self.prefixes.max_bytes == 0 or row.n_new > 0 or row.request.score_prompt:
            return False
        if row.n_read % block or end >= len(row.visible):
            return False
        for other in self._rows:
            if other is row:
                return False
            is_reading = other.sample == 0 and other.n_new == 0 and other.n_read // block == row.n_read // block
            if is_reading and other.visible[:end] == row.visible[:end]:
                return True
        return False

    def _keep_prefix(self, row: Row) -> None:
        """Adds the blocks that a row has read to the prefix cache."""
        self.prefixes.add(row.visible[: row.n_read], lambda start, end: self.engine.save(row.slot, start, end))

    # Generation

    def _append(self, row: Row, token: GeneratedToken | MinigptError, events: list[Event]) -> None:
        if row not in self._rows:  # its request has failed in this step
            return
        if isinstance(token, MinigptError):
            self._fail(row.request, token, events)
            return
        row.append(token.id)
        piece = row.text.add(token)
        if piece.finish_reason is not None:
            row.work.rows_left -= 1
            if self.engine.any_chunks:
                self._keep_prefix(row)
            self._release(row)
        events.append(Event(row.request, piece, is_last=row.work.rows_left == 0))

    def _fail(self, request: GenerationRequest, error: MinigptError, events: list[Event]) -> None:
        self.cancel(request)
        events.append(Event(request, Failed(error), is_last=True))


class PrefixCache:
    """Keeps the keys and values of blocks of `block` tokens, each under a hash of all tokens up to its end.

    The keys and values of a position depend on all tokens up to it, so that two prompts share a block only if they are
    equal up to its end. Beyond `max_bytes` the least recently used block is dropped.
    """

    def __init__(self, block: int, max_bytes: int) -> None:
        self.block, self.max_bytes = block, max_bytes
        self.n_bytes = 0
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()  # least recently used first

    def find(self, ids: Sequence[int]) -> list[Tensor]:
        """The blocks of the longest known beginning of these tokens, in order."""
        keys, found = [], []
        for key in self._keys(ids):
            if key not in self._blocks:
                break
            keys.append(key)
            found.append(self._blocks[key])
        for key in reversed(keys):  # the first block is needed by all others, so it is dropped last
            self._blocks.move_to_end(key)
        return found

    def add(self, ids: Sequence[int], save: Callable[[int, int], Tensor]) -> None:
        """Keeps the blocks of these tokens; `save(start, end)` copies one that is missing."""
        if self.max_bytes == 0:
            return
        for number, key in reversed(list(enumerate(self._keys(ids)))):
            if key not in self._blocks:
                self._blocks[key] = save(number * self.block, (number + 1) * self.block)
                self.n_bytes += self._blocks[key].nbytes
        while self.n_bytes > self.max_bytes:
            self.n_bytes -= self._blocks.popitem(last=False)[1].nbytes

    def _keys(self, ids: Sequence[int]) -> Iterator[bytes]:
        """The key of each whole block."""
        digest = hashlib.sha256()
        for end in range(self.block, len(ids) + 1, self.block):
            digest.update(array("q", ids[end - self.block : end]).tobytes())
            yield digest.digest()
