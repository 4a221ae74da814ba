"""Training as an iterator of events; it knows no terminal, and leaving the iterator is how to stop it.

Everything random is a pure function of (seed, step): the batches, and the dropout, whose generator is seeded anew for
every micro-batch. So a resumed run goes on as if it had never stopped, and no generator's state is ever stored.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import Literal

import torch
from torch import Tensor

from minigpt.analysis.evaluation import Evaluation as Measurement
from minigpt.analysis.evaluation import evaluate
from minigpt.config import SamplingConfig, TrainConfig
from minigpt.device import autocast, mix_seed, resolve_device, resolve_dtype
from minigpt.errors import ConfigError, TrainingError
from minigpt.generation.decoding import generate_text
from minigpt.model.gpt import GPT
from minigpt.storage.run import Run
from minigpt.text.corpus import Corpus
from minigpt.training.events import Evaluation, Event, Finished, Notice, Sample, Saved, Step
from minigpt.training.loss import next_token_loss
from minigpt.training.optimization import build_optimizer, learning_rate, set_learning_rate
from minigpt.training.pace import Pace, steps_in
from minigpt.training.state import Progress, capture, restore

_SAMPLING = SamplingConfig(max_new_tokens=120, temperature=0.8, top_p=0.95, seed=0)
_SAVE_AT_LEAST_EVERY = 300.0  # seconds, whatever the steps take


def train(
    model: GPT, corpus: Corpus, config: TrainConfig, run: Run | None = None, *, resume: bool = False
) -> Generator[Event, None, None]:
    """Trains `model` in place on the corpus and yields what happens, event by event.

    With a `run`, its folder keeps the log, the weights with the lowest validation loss and the last state, and the
    model ends as the best weights. With `resume`, training goes on from the run's last state: on a CPU bit for bit,
    where the budget is steps or epochs. Leaving the loop over the events stops training and saves that state.
    Seeds torch's global generator, and allows TF32 on CUDA.

    Raises: ConfigError for settings that do not fit the model or the corpus; TrainingError where the loss stops
    being finite or memory runs out (the last saved state stays); CheckpointError where the run cannot be written.
    """
    return _Training(model, corpus, config, run, resume).events()


class _Training:
    def __init__(self, model: GPT, corpus: Corpus, config: TrainConfig, run: Run | None, resume: bool) -> None:
        self.context = config.context_length or model.config.n_positions
        self.config = config = config.replace(context_length=self.context)
        _check_fit(model, corpus, self.context)
        self.device = resolve_device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 wherever float32 is left
        self.model, self.corpus, self.run = model.to(self.device), corpus, run
        self.features: Callable[[Tensor], Tensor] = model.features
        self.optimizer = build_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.batch_size = config.sequences_per_step
        self.pace = Pace(config, steps_in(config, len(corpus.train)))
        self.progress = Progress()
        self.saved_step = -1
        if resume:
            self._restore()
        self.clock = time.perf_counter() - self.progress.seconds
        self.last_save = time.perf_counter()

    def events(self) -> Generator[Event, None, None]:
        """The run, from wherever it stands: what is due between two steps, then a step, until the budget is spent."""
        yield from self._compile()
        try:
            while True:
                if self.pace.evaluation_is_due(self.progress):
                    yield from self._evaluate()
                if self.pace.sample_is_due(self.progress):
                    yield self._sample()
                stop_early = 0 < (self.config.patience or 0) <= self.progress.stale_evaluations
                if self._save_is_due() or stop_early:
                    yield from self._save_last()
                if self.pace.is_over(self.progress) or stop_early:
                    break
                yield self._step()
        except GeneratorExit:  # the caller left between two events, where the state is whole
            for _ in self._save_last():
                pass
            raise
        yield self._finish("early stop" if stop_early else "length")

    def _save_is_due(self) -> bool:
        """Whether to save the last state: it is never older than the best weights, lest the two part company."""
        every, progress = self.config.save_every, self.progress
        evaluated, is_best = progress.evaluated_step == progress.step, progress.best_step == progress.step
        due = progress.step % every == 0 or (evaluated and is_best) if every else evaluated
        return due or self.pace.is_over(self.progress) or time.perf_counter() - self.last_save > _SAVE_AT_LEAST_EVERY

    def _tick(self) -> float:
        """Seconds that the run has taken so far, those before it was resumed included."""
        self.progress.seconds = time.perf_counter() - self.clock
        return self.progress.seconds

    # One step.

    def _step(self) -> Step:
        """One optimizer step over the whole batch, accumulated in micro-batches."""
        self.model.train()
        started = time.perf_counter()
        step = self.progress.step
        rate = learning_rate(step, self.pace.share_done(self.progress), self.config)
        set_learning_rate(self.optimizer, rate)
        micro = self.config.micro_batch_size or self.batch_size
        total = 0.0
        for start in range(0, self.batch_size, micro):
            rows = range(start, min(start + micro, self.batch_size))
            total += self._accumulate(step, rows)
        norm = self._update(total, rate)
        self.progress.step += 1
        tokens = self.batch_size * self.context
        event = Step(
            step=self.progress.step,
            seconds=self._tick(),
            progress=self.pace.share_done(self.progress),
            loss=total,
            learning_rate=rate,
            gradient_norm=norm,
            tokens=self.progress.step * tokens,
            tokens_per_second=tokens / (time.perf_counter() - started),
        )
        self._log(event, "step", "loss", "learning_rate", "gradient_norm", "tokens", "seconds", "tokens_per_second")
        return event

    def _accumulate(self, step: int, rows: range) -> float:
        """Adds the gradient of some rows of the step's batch; returns their share of its mean loss."""
        inputs, targets = self.corpus.batch(step, self.batch_size, self.context, self.config.seed, rows)  # (B, T)
        torch.manual_seed(mix_seed(self.config.seed, step, rows.start))  # the dropout of this micro-batch
        try:
            with autocast(self.device, self.dtype):
                features = self.features(inputs.to(self.device))  # (B, T, C)
                loss = next_token_loss(features, self.model.token_embedding.weight, targets.to(self.device))  # ()
            share = loss * (len(rows) / self.batch_size)
            self.scaler.scale(share).backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # torch.OutOfMemoryError is one; a CPU's allocator raises a plain one
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            raise TrainingError(
                f"{len(rows)} sequences of {self.context} tokens at once are more than the memory of {self.device} "
                f"holds; give a --micro-batch-size below {len(rows)} (the batch stays the same) or a smaller model"
            ) from error
        return share.item()

    def _update(self, loss: float, rate: float) -> float:
        """Clips and applies the gradient; returns its norm before clipping.

        Raises: TrainingError where loss or gradient is not finite; under a loss scale such a gradient only skips
        the step.
        """
        self.scaler.unscale_(self.optimizer)
        limit = self.config.grad_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not math.isfinite(loss) or not (math.isfinite(norm) or self.scaler.is_enabled()):
            raise self._diverged(f"the loss is {loss:.4g} and the gradient's norm {norm:.4g} at rate {rate:.3g}")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:  # halved at every step that it had to skip
            raise self._diverged(f"float16 gradients overflow whatever their scale, now {self.scaler.get_scale():g}")
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _diverged(self, what: str) -> TrainingError:
        kept = f"the state of step {self.saved_step} is kept" if self.saved_step >= 0 else "nothing was saved yet"
        return TrainingError(
            f"training has diverged after step {self.progress.step} ({what}); {kept}: lower --learning-rate, now "
            f"{self.config.learning_rate:g}, or raise --warmup-steps, now {self.config.warmup_steps or 'chosen'}"
        )

    # Between steps. What an event tells of is done before it is yielded, since the caller may leave at any of them.

    def _measure(self, max_tokens: int | None) -> Measurement:
        return evaluate(
            self.model,
            self.corpus.validation,
            token_lengths=self.corpus.tokenizer.token_lengths,
            context=self.context,
            max_tokens=max_tokens,
            dtype=self.dtype,
        )

    def _evaluate(self) -> Iterator[Event]:
        """Measures the validation part and keeps the weights if they are the best; without one, keeps the latest."""
        progress = self.progress
        if progress.evaluated_step == progress.step:
            return
        started = self._tick()
        measured = self._measure(self.config.eval_tokens) if len(self.corpus.validation) > 1 else None
        if measured is not None and not math.isfinite(measured.loss):
            raise self._diverged(f"the validation loss is {measured.loss}")
        best = measured is None or progress.best_loss is None or measured.loss < progress.best_loss
        progress.stale_evaluations = 0 if best else progress.stale_evaluations + 1
        progress.evaluated_step = progress.step
        if best:
            progress.best_loss, progress.best_step = (measured.loss if measured else None), progress.step
        saved = self._save_best() if best else None
        progress.evaluated_at = self._tick()
        progress.evaluation_seconds = progress.evaluated_at - started
        if measured is not None:
            event = Evaluation(
                step=progress.step,
                validation_loss=measured.loss,
                bits_per_byte=measured.bits_per_byte,
                tokens=progress.step * self.batch_size * self.context,
                seconds=progress.seconds,
                best=best,
            )
            self._log(event, "step", "validation_loss", "bits_per_byte", "tokens", "seconds")
            yield event
        if saved is not None:
            yield saved

    def _sample(self) -> Sample:
        """Draws a sample, from the same prompt and seed each time."""
        prompt = self.config.sample_prompt
        text = "".join(generate_text(self.model, self.corpus.tokenizer, prompt, _SAMPLING))
        self.progress.sampled_step, self.progress.sampled_at = self.progress.step, self._tick()
        sample = Sample(self.progress.step, prompt, text)
        if self.run is not None:
            self.run.log({"step": sample.step, "prompt": sample.prompt, "sample": sample.text})
        return sample

    def _finish(self, reason: Literal["length", "early stop"]) -> Finished:
        """The last event, with the best weights measured over the whole validation part."""
        progress = self.progress
        if self.run is not None and progress.best_step != progress.step:
            self.model.load_state_dict(self.run.load_best())
        measured = self._measure(None) if len(self.corpus.validation) > 1 else None
        finished = Finished(
            step=progress.step,
            reason=reason,
            best_step=progress.best_step,
            validation_loss=measured.loss if measured else None,
            bits_per_byte=measured.bits_per_byte if measured else None,
            validation_tokens=measured.tokens if measured else 0,
            seconds=self._tick(),
        )
        if self.run is not None:
            self.run.update(result=dict(vars(finished)))
        return finished

    def _compile(self) -> Iterator[Event]:
        """Compiles the forward pass where that is wanted; where it fails, says so and goes on without."""
        if self.config.compile == "off" or (self.config.compile == "auto" and self.device.type != "cuda"):
            return
        self.features = torch.compile(self.model.features)
        try:
            self.model.train()
            self._accumulate(0, range(min(self.config.micro_batch_size or self.batch_size, self.batch_size)))
        except TrainingError:
            raise
        except Exception as error:  # whatever a compiler can raise; the plain path raises it again if it is ours
            self.features = self.model.features
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            yield Notice(self.progress.step, f"torch.compile failed, training goes on without it ({reason})")
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    # Keeping.

    def _log(self, event: Event, *names: str) -> None:
        if self.run is not None:
            self.run.log({name: getattr(event, name) for name in names})

    def _check_finite(self) -> None:
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise self._diverged("the weights are no longer finite")

    def _save_best(self) -> Saved | None:
        if self.run is None:
            return None
        self._check_finite()
        path = self.run.save_best(self.model, self.progress.step, self.progress.best_loss)
        return Saved(self.progress.step, path, "best")

    def _save_last(self) -> Iterator[Event]:
        """Writes what resuming needs, unless this very step is written already."""
        if self.run is None or self.saved_step == self.progress.step:
            return
        self._check_finite()
        path = self.run.save_last(capture(self.model, self.optimizer, self.scaler, self.progress))
        self.saved_step, self.last_save = self.progress.step, time.perf_counter()
        yield Saved(self.progress.step, path, "last")

    def _restore(self) -> None:
        """Takes up the run's last state; a run that never saved one starts at its beginning."""
        if self.run is None:
            raise ConfigError("resume needs a run to resume; give the run whose folder holds its last state")
        state = self.run.load_last()
        if state is None:
            self.run.truncate_log(-1, frozenset())
            return
        self.progress = restore(state, self.model, self.optimizer, self.scaler)
        self.saved_step = step = self.progress.step
        done = {"loss"}
        if self.progress.evaluated_step == step:
            done.add("validation_loss")
        if self.progress.sampled_step == step:
            done.add("sample")
        self.run.truncate_log(step, frozenset(done))


def _check_fit(model: GPT, corpus: Corpus, context: int) -> None:
    positions, words = model.config.n_positions, model.config.vocab_size
    if context > positions:
        raise ConfigError(f"context_length ({context}) must be at most the model's own ({positions})")
    if corpus.tokenizer.vocab_size > words:
        raise ConfigError(
            f"the corpus's tokenizer has {corpus.tokenizer.vocab_size} words; the model's vocabulary has only {words}"
        )
