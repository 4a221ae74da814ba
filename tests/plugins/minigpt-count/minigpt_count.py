"""A command: `minigpt count NAME` prints how many parameters each part of a model has."""

from minigpt.edges import Edge

EDGE = Edge(
    name="count",
    sentence="Parameters by part of the model.",
    package="minigpt_count",
    commands={"count": "minigpt_count_command:count"},
)
