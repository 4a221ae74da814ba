"""Speculative decoding that drafts in every step."""

from minigpt.generation.speculative import SpeedupMonitor


class AlwaysDraft(SpeedupMonitor):
    """As if drafting were always faster."""

    def should_draft(self) -> bool:
        return True

    def record(self, n_draft: int, n_tokens: int) -> None:
        pass
