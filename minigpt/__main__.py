"""`python -m minigpt` is the `minigpt` command."""

from minigpt.cli.start import main

main()
