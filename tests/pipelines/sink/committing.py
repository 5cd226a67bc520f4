"""A process that publishes a staged microbatch, to be killed: FOLDER ADDRESS BATCH COUNT."""

import sys

from pipelines.sink.writers import NsqStagedWriter
from tests.pipelines.sink.rows import numbers, options


def writer(folder: str, address: str) -> NsqStagedWriter:
    """A writer with command batches of ten rows, so that there are many."""
    return NsqStagedWriter(options(address, mode="staged", stagePath=folder, batchMessages="10"))


def run(folder: str, address: str, batch: int, count: int) -> None:
    """Stage this many numbers as two tasks, and commit them."""
    driver = writer(folder, address)
    halves = [(0, count // 2), (count // 2, count)]
    messages = [driver.write(numbers(*half)) for half in halves]
    driver.commit(messages, batch)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
