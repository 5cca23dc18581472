"""Hypothesis draws the same examples in every run and has no deadline: no test asserts on time."""

from hypothesis import settings

settings.register_profile("ci", deadline=None, derandomize=True)
