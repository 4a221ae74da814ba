"""A weight format: every command opens the checkpoints of karpathy/llm.c, as in `minigpt generate -m model.bin`."""

from minigpt.edges import Edge

EDGE = Edge(
    name="llmc",
    sentence="Checkpoints of llm.c.",
    package="minigpt_llmc",
    provides={"weight_reader": "minigpt_llmc_reader:READERS"},
)
