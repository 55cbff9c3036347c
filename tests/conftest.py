"""Hypothesis profiles: "fast" unless pytest is called with --hypothesis-profile=slow."""

import os

from hypothesis import settings

# A timing limit per example fails on a busy machine; in CI the examples are the same every time.
COMMON = settings(deadline=None, derandomize="CI" in os.environ, print_blob=True)

settings.register_profile("fast", COMMON, max_examples=50)
settings.register_profile("slow", COMMON, max_examples=2000)
settings.load_profile("fast")

# It needs atheris, which only `make fuzz` installs.
collect_ignore = ["fuzz/run.py"]
