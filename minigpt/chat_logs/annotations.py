"""What the display of a run says of a model that was trained on conversations."""

from minigpt.chat_logs.transcript import CHAT_TEMPLATE
from minigpt.cli.render.annotations import Annotations, NextStep
from minigpt.runs.job import Job


class ChatAnnotations(Annotations):
    """Proposes to talk to the model."""

    def first_try(self, job: Job) -> NextStep | None:
        if job.corpus.tokenizer.chat_template != CHAT_TEMPLATE:
            return None
        return NextStep("talk to it with:", (("chat", job.run.directory.name),))
