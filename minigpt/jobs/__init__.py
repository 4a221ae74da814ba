"""Training jobs: plan, start and resume runs, load models. The command line and Python users both call these."""
