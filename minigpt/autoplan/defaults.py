"""The rules of a plan: tokenizer, batch size, optimizer, learning rate, evaluation, and regularization.

docs/experiments.md has the measurements.
"""

from typing import Any

from minigpt.autoplan.all_settings import all_settings
from minigpt.autoplan.corpus_stats import CorpusStats
from minigpt.config import GPTConfig, TrainConfig
from minigpt.run_options import RunOptions
from minigpt.training.budget import EVALUATIONS

_CPU_STEP, _GPU_STEP = 1024, 16_384  # tokens in a batch
_TOKENS_PER_FEATURE = 4  # in a batch, with Muon on a CPU
_SAMPLED_FROM = 4096  # tokens of the vocabulary: a smaller one is a small part of the arithmetic
_SAMPLE = 2048  # tokens in the softmax of a step
_LARGE_VOCABULARY = 32_768  # tokens; of a larger one, the softmax has an eighth
_FEW_TOKENS = 20_000_000  # of a text: a longer one is not read often enough to be memorized
_DECAY_PER_PASS, _MOST_DECAY = 0.1, 1.0  # the embeddings' weight decay, for each pass over the text
_BPE_DROPOUT = ((2, 0.02), (9, 0.03), (13, 0.05))  # from so many passes over the text
_WITH_NEW_WORDS = ((0.5, 0.02), *_BPE_DROPOUT)  # the same for a text with many new words
_NEW_WORDS = 0.1  # the share of new words that is many
_EVALUATED = 0.09  # tokens per token trained on, for all evaluations of a run together
_FEW_EVALUATIONS = 8  # of a short run
_FINE_TUNED = 0.25  # of the learning rate of Muon, for a model that was trained with it
_NARROW = 256  # below this width an adapter is trained together with the token embedding


def optimization_settings(
    options: RunOptions,
    model: GPTConfig,
    context: int,
    stats: CorpusStats,
    device_type: str,
    processes: int,
    base_optimizer: str | None = None,
) -> dict[str, Any]:
    """The batch size, the optimizer, the learning rate, the patience, the size of samples of the vocabulary, and the
    weights that an adapter trains.

    The ones that the user gave are omitted. All weights of a model to fine-tune are trained with its `base_optimizer`:
    a change of it loses quality (Liu et al. 2025, "Muon is scalable for LLM training", section 3.5.2).

    A batch has about 1k tokens on a CPU and 16k on a GPU, and at most an eighth of the text. With Muon on a CPU it has
    at least four tokens per feature: orthogonalization costs width^3, the gradients cost width^2 times tokens, and in a
    smaller batch the former would dominate.
    """
    given = options.given
    lora = all_settings(options.training).lora
    fine_tuning = base_optimizer is not None
    usual = "adamw" if fine_tuning and lora else base_optimizer or "muon"
    optimizer = options.training.optimizer if "optimizer" in given else usual
    wanted = _CPU_STEP if device_type == "cpu" else _GPU_STEP
    if device_type == "cpu" and optimizer == "muon":
        wanted = max(wanted, _TOKENS_PER_FEATURE * model.n_embd)
    step_tokens = min(wanted, max(context, stats.n_tokens // 8))
    chosen: dict[str, Any] = {
        "batch_size": max(processes, 1, round(step_tokens / context)),
        "optimizer": optimizer,
        "patience": 5 if stats.n_tokens < _FEW_TOKENS else 0,
    }
    if device_type == "cpu" and usual == "muon" and stats.vocab_size >= _SAMPLED_FROM:
        is_large = stats.vocab_size > _LARGE_VOCABULARY
        chosen["sampled_softmax"] = stats.vocab_size // 8 if is_large else _SAMPLE
    if device_type == "cpu" and not fine_tuning and all_settings(options.training).sharding != "on":
        chosen["spelling_features"] = stats.has_merges and stats.n_tokens < _FEW_TOKENS
    if lora:
        chosen |= _adapter_settings(model.n_embd, options.training)
    else:
        chosen["learning_rate"] = _learning_rate(model.n_embd, optimizer, fine_tuning=fine_tuning)
    return {name: value for name, value in chosen.items() if name not in given}


def usual_learning_rate(model: GPTConfig, config: TrainConfig, *, fine_tuning: bool) -> float:
    """The learning rate that is chosen for a run of this model with this optimizer, or with this adapter."""
    if all_settings(config).lora:
        return float(_adapter_settings(model.n_embd, config)["learning_rate"])
    return _learning_rate(model.n_embd, config.optimizer, fine_tuning=fine_tuning)


def _learning_rate(width: int, optimizer: str, *, fine_tuning: bool) -> float:
    """The peak learning rate; wider models get a smaller one."""
    if fine_tuning and optimizer != "muon":
        return _fine_tuning_rate(width, 1, most=1e-3)
    peak, power = (8e-3, 0.5) if optimizer == "muon" else (3e-3, 0.75)
    peak *= _FINE_TUNED if fine_tuning else 1.0
    return float(f"{peak * (128 / max(128, width)) ** power:.3g}")


def _fine_tuning_rate(width: int, factor: float, most: float) -> float:
    """`factor` times the learning rate at which all weights of a pretrained model are trained.

    That is the usual 5e-5 at GPT-2 small's width of 768, and 7e-4 at 128, near 1e-3, the best of four measured there; a
    power of the width connects the two.
    """
    return float(f"{min(most, factor * 5e-5 * (768 / width) ** 1.5):.3g}")


def _adapter_settings(width: int, config: TrainConfig) -> dict[str, Any]:
    """Whether an adapter has the token embedding trained with it, and the learning rate.

    An adapter needs about ten times the rate of all weights, whatever its rank, because its factor is divided by the
    rank. Together with the embedding, whose weights are changed directly, a fifth to a quarter of that was best.
    Source: Schulman et al. 2025, "LoRA Without Regret" (the tenfold rate).
    """
    embedding = all_settings(config).lora_embedding
    if embedding is None:
        embedding = width < _NARROW and not all_settings(config).freeze
    rate = _fine_tuning_rate(width, 2.5, most=1e-3) if embedding else _fine_tuning_rate(width, 10, most=5e-3)
    return {"lora_embedding": embedding, "learning_rate": rate}


def eval_tokens(seen: float, model: GPTConfig, config: TrainConfig) -> int:
    """Validation tokens per evaluation, so that all evaluations take about 3 % of the time.

    `seen` is the number of tokens trained on. Evaluating a token takes a third of the time of training on it, and more
    if only training samples the vocabulary. A long run has twenty evaluations. A short one has fewer, of up to 4,096
    tokens, and at least 1,024: the change of the loss between two evaluations has an error of about 1 nat / sqrt(n)
    with n tokens, 0.03 nats with 1,024.
    """
    trained = config.flops_per_token(model) / config.replace(sampled_softmax=0).flops_per_token(model)
    affordable = _EVALUATED * trained * seen
    return int(min(200_000, max(affordable / EVALUATIONS, min(4096, affordable / _FEW_EVALUATIONS), 1024)))


def against_overfitting(
    model: GPTConfig, config: TrainConfig, options: RunOptions, stats: CorpusStats, seen: float
) -> tuple[GPTConfig, TrainConfig]:
    """The settings with a choice of the embeddings' weight decay, BPE-dropout, token noise and dropout, except the ones
    that the user gave.

    `seen` is the number of tokens trained on. A text that is seen often gets more weight decay and BPE-dropout, which a
    text with many new words gets earlier, or token noise if its tokenizer has no merges to drop. Dropout grows with the
    epochs and with the parameters per byte of text. It is smaller next to noise: in every measurement noise was better
    than dropout, and worse together with it.
    """
    given, epochs = options.given, seen / stats.n_tokens
    if stats.has_merges and not {"embedding_weight_decay", "weight_decay"} & given:
        decay = min(_MOST_DECAY, max(config.weight_decay, _DECAY_PER_PASS * epochs))
        config = config.replace(embedding_weight_decay=float(f"{decay:.2g}"))
    if "bpe_dropout" not in given and stats.has_merges:
        rates = _WITH_NEW_WORDS if (stats.new_words or 0) >= _NEW_WORDS else _BPE_DROPOUT
        config = config.replace(bpe_dropout=max((rate for least, rate in rates if epochs >= least), default=0.0))
    if "token_noise" not in given and not stats.has_merges:
        config = config.replace(token_noise=0.1 if epochs >= 5 else 0.0)
    if "dropout" not in given:
        repetition = epochs * model.n_inner_parameters / stats.n_bytes
        if all_settings(config).token_noise > 0 or all_settings(config).bpe_dropout > 0:
            dropout = 0.0 if repetition < 50 else 0.1
        else:
            dropout = 0.0 if repetition < 10 else 0.1 if repetition < 50 else 0.2
        model = model.replace(dropout=dropout)
    return model, config
