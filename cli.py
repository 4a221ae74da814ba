"""`python cli.py ...` from a checkout does what the installed `minigpt` does."""

from minigpt.cli.start import main

if __name__ == "__main__":
    main()
