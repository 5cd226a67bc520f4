"""What all tests share: the same examples at each run; a log that is as it was before."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    database=None,
    # The machine may be busy with other work; a slow draw says nothing about the code.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", max_examples=1_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """A test that runs a command in this process does not decide what others' logs hold."""
    logger = logging.getLogger("trionsq")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
