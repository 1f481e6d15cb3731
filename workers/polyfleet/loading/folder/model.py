"""From a Hugging Face folder (config.json and safetensors) to a LoadedModel. Nothing in the folder is executed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.folder.config import read_config
from polyfleet.loading.folder.files import check_is_model, read_headers, weight_files
from polyfleet.loading.folder.tensors import open_tensors, read_weights
from polyfleet.loading.folder.tokenizer import folder_tokenizer
from polyfleet.loading.folder.vision import load_vision, read_vision
from polyfleet.loading.headers import check_entries
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.placing import Keep, place_all
from polyfleet.loading.progress import Progress
from polyfleet.loading.scoring import score_names, scoring
from polyfleet.loading.shapes import check_weights
from polyfleet.models.config import ModelConfig


def load_folder(path: str, progress: Progress, keeping: Callable[[ModelConfig], Keep] | None = None) -> LoadedModel:
    """Load the folder, or what is kept of it; raises ModelFileError."""
    folder = Path(path)
    check_is_model(folder)
    architecture, config, scheme = read_config(folder)
    vision = read_vision(folder, config.hidden_size)
    entries = read_headers(folder, files := weight_files(folder))
    with open_tensors(files) as tensors:
        names = score_names(architecture.folder_names) if config.score_tokens else architecture.folder_names
        vision = vision and load_vision(vision, tensors)
        tensors = replace(tensors, places={each: at for each, at in tensors.places.items() if not names.ignores(each)})
        check_entries(path, config, names, scheme, entries)
        keep = _alone(keeping(config)) if keeping else None
        read = read_weights(tensors, scheme, progress)
        weights = place_all(scoring(read, names, config) if config.score_tokens else read, names, config, keep)
    if keeping is None:
        check_weights(path, config, weights)
    tokenizer, end_token_ids = folder_tokenizer(folder, config, vision.settings if vision else None)
    return LoadedModel(path, replace(config, end_token_ids=end_token_ids), weights, tokenizer, vision)


def _alone(keep: Keep) -> Keep:
    """The same, of blocks that lie in memory a copy: lest a part holds the whole."""

    def kept(weight: Weight) -> Iterator[Weight]:
        for part in keep(weight):
            whole = part.data.untyped_storage().nbytes() == part.data.nbytes
            yield replace(part, data=part.data.clone()) if part.format.quantised and not whole else part

    return kept
