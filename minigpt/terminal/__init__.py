"""A live panel of a run, and prose that is broken at words."""
