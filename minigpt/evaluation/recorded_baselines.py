"""The baselines that a training run is compared with, read from its record."""

from minigpt.evaluation.baselines import Baseline
from minigpt.storage.run_record import RunRecord


def recorded_baselines(record: RunRecord) -> list[Baseline]:
    """The baselines that a run measured, the worst first; none if it measured none, or changed its text since, or
    measures its loss on a part of the text only, as baselines do not.
    """
    kept, corpus = record.baselines, record.corpus
    if record.training is not None and record.training.loss_on != "all":
        return []
    if kept is None or corpus is None or kept.fingerprint != corpus.fingerprint:
        return []
    found = [
        Baseline(
            name=measured.name,
            bits_per_byte=measured.bits_per_byte,
            train_bytes=measured.train_bytes,
            validation_bytes=measured.validation_bytes,
            whole_train_bytes=measured.whole_train_bytes,
            whole_validation_bytes=measured.whole_validation_bytes,
        )
        for measured in kept.measured
    ]
    return sorted(found, key=lambda baseline: -baseline.bits_per_byte)
