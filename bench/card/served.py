"""The engine's process of `bench.card.worker`: the product's own, with an engine of random weights."""

from polyfleet.serving import engine_process
from polyfleet.serving.engine_protocol import Progress, ServedEngine
from polyfleet.wire.options import EngineOptions


def load(path: str, options: EngineOptions, progress: Progress) -> ServedEngine:
    """`path` names a shape."""
    with engine_process.lasting():
        from bench.card.ours import random_engine

        return random_engine(path, options)


if __name__ == "__main__":
    engine_process.main(obj=load)
