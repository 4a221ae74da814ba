"""A text format: `minigpt train notes.ipynb` reads the cells of Jupyter notebooks."""

from minigpt.edges import Edge

EDGE = Edge(
    name="notebooks",
    sentence="Text and code of Jupyter notebooks.",
    package="minigpt_notebooks",
    provides={"text_reader": "minigpt_notebooks_reader:READER"},
)
