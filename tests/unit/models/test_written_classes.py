"""What transformers writes into config.json, whose class may be another model's, names the architecture that it is."""

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from polyfleet.models.registry import ARCHITECTURES, of_folder

TYPES = {kind for each in ARCHITECTURES.values() for kind in each.model_types}
ENCODERS = {"bert", "camembert", "roberta", "xlm-roberta"}  # which draw no tokens here


@pytest.mark.parametrize("kind", sorted((TYPES - ENCODERS) & MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()))
def test_a_class_that_transformers_writes_for_a_type_is_no_contradiction(kind: str) -> None:
    written = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    for name in [written] if isinstance(written, str) else written:
        assert kind in of_folder([name], kind).model_types
