"""Weights in files of NumPy, for minigpt."""

from minigpt.edges import Edge

EDGE = Edge(
    name="npz",
    sentence="Weights of NumPy's .npz files.",
    package="minigpt_npz",
    provides={"weight_reader": "minigpt_npz.reader:READERS"},
)
