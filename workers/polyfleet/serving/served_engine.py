"""The engine of a worker: any model that the engine loads, if it has a tokenizer to serve text with."""

from polyfleet.engine import Engine
from polyfleet.engine.engine import Progress
from polyfleet.wire.options import EngineOptions


def load(path: str, options: EngineOptions, progress: Progress) -> Engine:
    """As Engine.load. Raises ValueError, too, for a model without a tokenizer: clients could send it token ids only."""
    engine = Engine.load(path, options, progress)
    if engine.tokenizer is None:
        raise ValueError(
            f"{path}: there is no tokenizer (tokenizer.json, or a GGUF file's own), so text can't be served with it"
        )
    return engine
