"""`python -m minigpt` is the `minigpt` command."""

from minigpt.cli.app import main

main()
