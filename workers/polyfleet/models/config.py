"""The facts of a model that its file states, in one vocabulary for GGUF and Hugging Face folders."""

from dataclasses import dataclass, replace

from polyfleet.wire.requests import Pooling


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a transformer. Architectures with facts of their own extend it.

    `inverse_frequencies` has any rope scaling applied already; where they are fewer than head_dim / 2, the other pairs
    of a head don't turn. `windows`: how many positions a row sees in each layer, its own included; 0 or none: all.
    """

    architecture: str  # its name in the registry
    name: str
    vocabulary_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    inverse_frequencies: tuple[float, ...]
    context_length: int
    tied_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    end_token_ids: tuple[int, ...] = ()
    rope_amplitude: float = 1.0  # by which pairs that turn grow
    windows: tuple[int, ...] = ()
    short_frequencies: tuple[float, ...] = ()  # those that hold instead where no context is over `short_context`
    short_context: int = 0
    wide_norms: bool = False  # whether the weights of norms stay float32: their files leave out 1, which hides digits
    layer_norms: bool = False  # whether norms go around the mean; else RMS norms
    norm_biases: bool = True  # whether norms around the mean have them
    norm_weights: bool = True  # whether norms have some; else loading makes ones
    draft_layers: int = 0  # behind the model's own: they only draft, and are not loaded
    embeds_only: bool = False  # whether it has no logits to draw from
    causal: bool = True  # whether rows see no position behind their own; else a step takes each sequence whole
    pooling: Pooling | None = None  # how its own files want hidden states pooled
    normalized: bool = False  # whether they want vectors of length 1
    cross_encoder: bool = False  # whether it gives one number for a query and a document, in place of hidden states
    score_tokens: tuple[int, ...] = ()  # of a decoder that ranks: those of yes and no, or of yes, whose logits tell
    bounded: bool = True  # whether scores of what ranks are taken to 0 … 1 by a sigmoid
    segments: int = 1  # that tokens may stand in; ids of the second are those of the first + vocabulary_size

    def window(self, layer: int) -> int:
        """Of a layer; 0: it sees all."""
        return self.windows[layer] if self.windows else 0

    @property
    def local_window(self) -> int:
        """The widest window of the layers that have one, where others see all; else 0."""
        mixed = self.causal and any(self.windows) and not all(self.windows)
        return max(self.windows) if mixed else 0

    @property
    def horizon(self) -> int:
        """Positions that the layer which sees most of them sees, a row's own included; 0: all."""
        return max(self.windows, default=0) if all(self.windows) else 0

    def served(self, context_length: int) -> "ModelConfig":
        """As the model computes where it is served with contexts up to this length (0: with its own)."""
        if not self.short_frequencies or not 0 < (context_length or self.context_length) <= self.short_context:
            return self
        return replace(self, inverse_frequencies=self.short_frequencies, short_frequencies=(), short_context=0)
