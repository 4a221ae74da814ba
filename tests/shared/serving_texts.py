"""Texts for the servers of the tests, from the beginning of Moby Dick."""

TEXTS = [
    "Call me Ishmael. Some years ago, never mind how long precisely, I thought I would sail about a little.",
    "It is a way I have of driving off the spleen and regulating the circulation, whenever I am grim about the mouth.",
    "Whenever it is a damp, drizzly November in my soul, I account it high time to get to sea as soon as I can.",
    "There now is your insular city of the Manhattoes, belted round by wharves as Indian isles by coral reefs.",
]
