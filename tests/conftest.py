"""What holds for all tests: Hypothesis profiles ("fast", --hypothesis-profile=slow); garbage."""

import gc
import os

import pytest
from hypothesis import settings

# A timing limit per example fails on a busy machine; in CI the examples are the same every time.
COMMON = settings(deadline=None, derandomize="CI" in os.environ, print_blob=True)

settings.register_profile("fast", COMMON, max_examples=50)
settings.register_profile("slow", COMMON, max_examples=2000)
settings.load_profile("fast")

# It needs atheris, which only `make fuzz` installs.
collect_ignore = ["fuzz/run.py"]


@pytest.fixture(scope="module", autouse=True)
def _old_objects_spared() -> None:
    """Looks for garbage only among what a file's tests make.

    Modules and shared models are a million objects, and many tests collect garbage to count bytes.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end all is garbage: what is spared then, its libraries report as leaked."""
    gc.unfreeze()
