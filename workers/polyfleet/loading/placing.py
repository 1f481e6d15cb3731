"""From the tensors of a file to the weights of a graph, as the architecture's names say where they lie."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.headers import PART
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.falcon_h1 import FalconH1Config
from polyfleet.models.latent import LatentConfig
from polyfleet.models.mixture import MixtureConfig
from polyfleet.models.qwen3_next import DeltaConfig
from polyfleet.models.recorder import ONES, Shapes
from polyfleet.models.registry import weight_shapes

# Weights whose rows, or columns of a vector, are those of turning heads.
TURNING = ("q", "k", "q_norm", "k_norm", "q_rope", "k_rope")
NORM = "norm"  # how the names of their weights end
QKV = ("q", "k", "v")
JOINS = "eh_proj"  # in the name of the matrix that layers have which draft
TIED_HEAD = "tied lm_head"  # under this name, one that is not the embedding's although it should be
SAMPLED_ROWS = 64


Keep = Callable[[Weight], Iterable[Weight]]  # what is kept of a weight, or of a stack's part


def place_all(
    tensors: Iterable[Weight], names: TensorNames, config: ModelConfig, keep: Keep | None = None
) -> dict[str, Weight]:
    """The weights that a file's tensors hold, by name, or what `keep` keeps of each before the next is read."""
    shapes, weights = weight_shapes(config), dict[str, Weight]()
    drafting, head = _Drafting(names, config), None
    for tensor in tensors:
        if drafting.takes(tensor):
            continue
        if config.tied_embeddings and names.graph_names(tensor.name) == ("lm_head",):
            head = tensor
        elif not names.ignores(tensor.name):
            for weight in place(tensor, names, config, shapes):
                weights.update((each.name, each) for each in (keep(weight) if keep else (weight,)))
    weights.update((f"unknown.{each.name}", each) for each in drafting.others)
    if head is not None and "embedding" in weights and _differ(head, weights["embedding"]):
        weights[TIED_HEAD] = head
    _stack(weights)
    weights.update((name, _ones(name, columns)) for name, (_, columns) in shapes.items() if name.startswith(ONES))
    if config.segments > 1:
        _tell_segments(weights, config)
    return weights


def _ones(name: str, columns: int) -> Weight:
    return Weight(name, WeightFormat.F32, 1, columns, torch.ones(1, columns))


class _Drafting:
    """Tensors of layers behind the model's own, which only draft: they have what joins a token and a hidden state."""

    def __init__(self, names: TensorNames, config: ModelConfig) -> None:
        self._names, self._config = names, config
        self._layers: dict[int, list[Weight]] = {}

    def takes(self, tensor: Weight) -> bool:
        """Whether it lies in one of these layers."""
        layer = self._names.layer(tensor.name)
        found = 0 <= layer - self._config.num_layers < self._config.draft_layers
        if found:
            self._layers.setdefault(layer, []).append(replace(tensor, data=tensor.data.new_empty(0)))  # it is let go
        return found

    @property
    def others(self) -> Iterator[Weight]:
        """Tensors of layers that are none such."""
        for tensors in self._layers.values():
            if not any(JOINS in each.name for each in tensors):
                yield from tensors


def _differ(head: Weight, embedding: Weight) -> bool:
    """Whether an output is another one than the embedding, by rows of both."""
    if head.format.quantised or embedding.format.quantised:
        return False
    if (head.rows, head.columns) != (embedding.rows, embedding.columns):
        return True
    rows = torch.linspace(0, head.rows - 1, min(head.rows, SAMPLED_ROWS)).long()
    return not torch.equal(head.data[rows].float(), embedding.data[rows].float())


def _tell_segments(weights: dict[str, Weight], config: ModelConfig) -> None:
    """Give the embedding rows for each segment, whose types differ from the first one's, which all tokens get."""
    tokens, types = (weights.get(name) for name in ("embedding", "types"))
    if tokens is None or types is None or tokens.format.quantised or types.format.quantised:
        return
    if (tokens.rows, tokens.columns, types.rows) != (config.vocabulary_size, types.columns, config.segments):
        return  # of the wrong shape, which is reported when all weights are there
    offsets = types.data.float() - types.data[:1].float()
    data = torch.cat([tokens.data.float() + offset for offset in offsets])
    weights["embedding"] = Weight("embedding", WeightFormat.F32, len(data), data.shape[1], data)


def _stack(weights: dict[str, Weight]) -> None:
    """Put the parts of stacks together, where all are there and alike; what is left over is reported later."""
    parts: dict[str, dict[int, Weight]] = {}
    for name, weight in weights.items():
        if match := PART.fullmatch(name):
            parts.setdefault(match[1], {})[int(match[2])] = weight
    for name, found in parts.items():
        first, numbers = next(iter(found.values())), range(len(found))
        alike = all((each.format, each.columns) == (first.format, first.columns) for each in found.values())
        if alike and found.keys() == set(numbers):
            data = torch.cat([found[number].data for number in numbers])
            for number in numbers:
                del weights[f"{name}[{number}]"]
            weights[name] = Weight(name, first.format, sum(each.rows for each in found.values()), first.columns, data)


def place(tensor: Weight, names: TensorNames, config: ModelConfig, shapes: Shapes) -> Iterator[Weight]:
    """The weights that a tensor holds. Unknown ones keep their name behind `unknown.`; shapes are not checked here."""
    known = names.graph_names(tensor.name)
    if not known or not all(PART.sub(r"\1", name) in shapes for name in known):
        known = (f"unknown.{tensor.name}",)
    if known[0].rpartition(".")[2] in names.turned and not tensor.format.quantised:
        data = tensor.data.mT.contiguous()
        tensor = replace(tensor, rows=len(data), columns=data.shape[1], data=data)
    parts = _parts(tensor, known, config, shapes)
    stack = ".experts." in known[0] and not PART.fullmatch(known[0])
    turned = names.turned_stacks and (names.taking_turns or not _by_rows(tensor, known, config, shapes))
    if turned and stack and isinstance(config, MixtureConfig):
        parts = _turned(tensor, len(known), config.route.experts, in_turn=names.taking_turns)
    elif names.qkv_by_heads and len(known) == len(QKV):
        parts = _by_heads(tensor, config)
    for name, part in zip(known, parts, strict=True):
        if shapes.get(name) == (1, part.rows * part.columns) and not part.format.quantised:
            part = replace(part, rows=1, columns=part.rows * part.columns, data=part.data.reshape(1, -1))
        kind = name.removesuffix(".bias").rpartition(".")[2]
        if kind in TURNING:
            part = replace(part, data=_half_split(part, names, config))
        if names.norm_offset and name.endswith(NORM):
            part = replace(part, format=WeightFormat.F32, data=part.data.float() + names.norm_offset)
        if name.endswith("ssm_conv") and isinstance(config, FalconH1Config):
            part = _scaled(part, config)
        if kind in names.rates and not part.format.quantised:
            part = replace(part, format=WeightFormat.F32, data=(-part.data.float()).log())
        yield replace(part, name=name)


def _parts(tensor: Weight, names: tuple[str, ...], config: ModelConfig, shapes: Shapes) -> Iterator[Weight]:
    """The tensor cut by rows, or a vector by columns, where it holds several weights; whole where sizes differ."""
    vector = tensor.rows == 1
    if len(names) == 1:
        yield tensor
        return
    if isinstance(config, LatentConfig) and names[0].endswith(".k_up"):
        yield from _ups(tensor, config)
        return
    sizes = [shapes[name][1 if vector else 0] for name in names]
    if isinstance(config, DeltaConfig) and names[0].rpartition(".")[2] in config.grouped and sum(sizes) == tensor.rows:
        yield from _grouped(tensor, config.key_heads, config.grouped[names[0].rpartition(".")[2]])
        return
    if (stacked := _stacked(names, config)) and sum(sizes) == tensor.rows:
        stack = tensor.data.view(stacked, -1, tensor.data.shape[1])
        for data, size in zip(torch.split(stack, [each // len(stack) for each in sizes], dim=1), sizes, strict=True):
            yield replace(tensor, rows=size, data=data.flatten(0, 1))
        return
    if sum(sizes) != (tensor.columns if vector else tensor.rows):
        yield from [tensor] * len(names)
        return
    for data, size in zip(torch.split(tensor.data, sizes, dim=1 if vector else 0), sizes, strict=True):
        rows, columns = (1, size) if vector else (size, tensor.columns)
        yield replace(tensor, rows=rows, columns=columns, data=data)


def _stacked(names: tuple[str, ...], config: ModelConfig) -> int:
    """In how many parts of its own a tensor holds these weights; 0: one behind the other."""
    if isinstance(config, MixtureConfig) and ".experts." in names[0]:
        return config.route.experts
    return config.num_heads if names[-1].endswith((".q_rope", ".attention_gate")) else 0


def _grouped(tensor: Weight, heads: int, widths: tuple[tuple[int, ...], ...]) -> Iterator[Weight]:
    """Weights whose rows lie by heads, each a run of pieces: `widths` has the rows of the pieces of each weight."""
    stack, sizes = tensor.data.view(heads, -1, tensor.data.shape[1]), [rows for each in widths for rows in each]
    parts = iter(torch.split(stack, sizes, dim=1))
    for each in widths:
        data = torch.cat([next(parts).flatten(0, 1) for _ in each])
        yield replace(tensor, rows=len(data), data=data)


def _by_rows(tensor: Weight, names: tuple[str, ...], config: ModelConfig, shapes: Shapes) -> bool:
    """Whether a stack lies rows first after all, as libraries write it that turned it when they read it."""
    if not isinstance(config, MixtureConfig) or not all(name in shapes for name in names):
        return False
    experts, rows, columns = config.route.experts, sum(shapes[name][0] for name in names), shapes[names[0]][1]
    return (tensor.rows, tensor.columns) == (rows, columns) != (experts * columns, rows // experts)


def _by_heads(tensor: Weight, config: ModelConfig) -> Iterator[Weight]:
    """Queries, keys and values of rows, or of a vector's columns, that lie by KV heads."""
    rows, vector = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim, tensor.rows == 1
    if rows != (tensor.columns if vector else tensor.rows) or config.num_heads % config.num_kv_heads:
        yield from [tensor] * len(QKV)  # of the wrong shape, which is reported when all weights are there
        return
    heads = tensor.data.view(config.num_kv_heads, -1, config.head_dim, 1 if vector else tensor.data.shape[1])
    for part in torch.split(heads, [heads.shape[1] - 2, 1, 1], dim=1):
        data = part.flatten().unsqueeze(0) if vector else part.flatten(0, 2)
        yield replace(tensor, rows=len(data), columns=data.shape[1] if vector else tensor.columns, data=data)


def _turned(tensor: Weight, count: int, experts: int, *, in_turn: bool) -> Iterator[Weight]:
    """Of a stack [experts, columns, rows], or of biases [experts, rows], whose rows `count` weights have in turn, or
    one behind the other."""
    if tensor.format.quantised:  # which lies rows first
        sides, axis = ((-1, count), 2) if in_turn else ((count, -1), 1)
        for data in tensor.data.view(experts, *sides, tensor.data.shape[1]).unbind(axis):
            yield replace(tensor, rows=tensor.rows // count, data=data.flatten(0, 1))
        return
    if tensor.rows % experts or tensor.columns % count:
        yield from [tensor] * count  # of the wrong shape, which is reported when all weights are there
        return
    each = tensor.columns // count
    stack = tensor.data.view(experts, -1, *((each, count) if in_turn else (count, each)))
    for number in range(count):
        data = stack.select(3 if in_turn else 2, number).mT.flatten(0, 1).contiguous()
        yield replace(tensor, rows=len(data), columns=data.shape[1], data=data)


def _ups(tensor: Weight, config: LatentConfig) -> Iterator[Weight]:
    """Each head's matrix from latents to keys, turned round, and to values; dense, as blocks can't be turned."""
    if tensor.format.quantised:
        tensor = replace(tensor, format=WeightFormat.F16, data=dequantise(tensor, torch.float16))
    keys, values = config.plain_width, config.value_width
    if tensor.rows != config.num_heads * (keys + values) or tensor.columns != config.latent_width:
        yield from (tensor, tensor)  # of the wrong shape, which is reported when all weights are there
        return
    key, value = torch.split(tensor.data.view(config.num_heads, keys + values, -1), [keys, values], dim=1)
    for each in (key.mT, value):
        data = each.flatten(0, 1).contiguous()
        yield replace(tensor, rows=len(data), columns=data.shape[1], data=data)


def _scaled(weight: Weight, config: FalconH1Config) -> Weight:
    """A convolution's weights, each column's so much larger as what enters it is to be."""
    factors = torch.tensor([factor for columns, factor in config.factors for _ in range(columns)])
    if weight.format.quantised or weight.columns % len(factors):
        return weight  # of the wrong shape, which is reported when all weights are there
    data = weight.data.float().view(len(factors), -1) * factors.unsqueeze(1)
    return replace(weight, format=WeightFormat.F32, data=data.view(1, -1))


def _half_split(weight: Weight, names: TensorNames, config: ModelConfig) -> torch.Tensor:
    """Heads whose pairs (i, i + half) turn, those that don't turn behind them in each half."""
    width, turning = config.head_dim, 2 * len(config.inverse_frequencies)
    vector = weight.rows == 1
    rows = weight.data.view(-1, 1) if vector else weight.data
    if len(rows) % width or (not names.interleaved and turning == width):
        return weight.data  # as it is, or of the wrong shape, which is reported when all weights are there
    columns = torch.arange(turning)
    pairs = columns.view(-1, 2) if names.interleaved else columns.view(2, -1).t()
    still = torch.arange(turning, width).view(2, -1)
    order = torch.cat((pairs[:, 0], still[0], pairs[:, 1], still[1]))
    heads = rows.view(len(rows) // width, width, rows.shape[1])
    return heads.index_select(1, order).reshape(weight.data.shape)  # by whole rows, where [:, order] goes by numbers
