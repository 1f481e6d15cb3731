"""nanochat: norms without weights, of the embedding too; heads turn the other way round, MLPs have no gate."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder
from polyfleet.models.starcoder2 import squared


@dataclass(frozen=True, slots=True, kw_only=True)
class NanochatConfig(ModelConfig):
    """`logit_cap`: 0 where there is none."""

    logit_cap: float


def record(config: NanochatConfig, model: Recorder) -> KernelGraph:
    """A norm without weights is the same before and behind a rotation."""
    graph, rope = model.graph, model.rope(tuple(-each for each in config.inverse_frequencies))
    x = model.norm(model.embedding(), "norm")
    for _ in model.layers():
        x = graph.add(model.attention(model.norm(x, "attention_norm"), rope, head_norms=True), x)
        x = graph.add(model.plain_mlp(model.norm(x, "mlp_norm"), squared(model)), x)
    return model.finish(x, soft_cap=config.logit_cap)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields, ("relu2",))
    key = "final_logit_softcapping"
    cap = fields.positive(key, 15.0) if fields.has(key) or key not in fields.values else 0.0
    return NanochatConfig(**read_sizes(fields), norm_weights=False, logit_cap=cap)


NANOCHAT = replace(
    LLAMA,
    name="nanochat",
    title="nanochat",
    classes=("NanoChatForCausalLM",),
    model_types=("nanochat",),
    gguf=(),
    read_folder=_read_folder,
    record=record,
    folder_names=names.folder({"mlp.fc1": "up", "mlp.fc2": "down"}),
    notes="",
)
