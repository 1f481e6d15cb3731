"""The executor of the made-up device: a class with the methods of `polyfleet.engine.executor.Executor`.

A real one hands the graph to its vendor's runtime. This device computes as the host does, so its executor lets the
eager one work there, under a name of its own.
"""

from dataclasses import replace

from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.progress import Progress


class SampleExecutor(EagerExecutor):
    """All steps on the host."""

    name = "sample"

    @classmethod
    def build(cls, workload: Workload, progress: Progress) -> "SampleExecutor":
        """The executor with its weights in the host's memory."""
        return cls(replace(workload, device="cpu"), progress)
