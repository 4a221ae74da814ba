"""The starter model: a small English GPT-2 that comes with minigpt, in the folder `starter` beside this file."""

from pathlib import Path

from minigpt.storage.shipped_models import ShippedModel

STARTER = ShippedModel(
    directory=Path(__file__).parent / "starter",
    sentence="a small English model that comes with minigpt",
)
