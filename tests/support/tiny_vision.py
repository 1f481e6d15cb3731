"""A tiny random model that sees images, by transformers, with all that its processor needs."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tests.support.tiny_tokenizers import byte_characters
from tokenizers import Tokenizer

SIDE, PATCH, SHUFFLE, LONGEST = 16, 4, 2, 32  # pixels of a crop and a patch; patches that become one row; of an image
ROWS = (SIDE // PATCH // SHUFFLE) ** 2
TOKENS = (
    *("<|start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
IMAGE_ID = TOKENS.index("<image>")
VOCABULARY = len(TOKENS) + 256
TEMPLATE = (
    "<|start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
SEEING: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "image_size": SIDE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}

STATED: dict[str, Any] = {  # `images` of the tokenizer assets
    "side": SIDE,
    "longest_edge": LONGEST,
    "split": True,
    "resample": "lanczos",
    "rows": ROWS,
    "token_id": IMAGE_ID,
    "token": "<image>",
    "around": "<fake_token_around_image>",
    "whole": "<global-img>",
}


def make(folder: Path, kind: str = "idefics3", **seeing: Any) -> Any:
    """Write a folder and return transformers' model."""
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(
        kind, text_config=TEXT, vision_config={**SEEING, **seeing}, image_token_id=IMAGE_ID, scale_factor=SHUFFLE
    )
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for weight in model.parameters():  # norms and biases that count
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_settings()))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end_of_utterance>"}))
    return model


def processor_settings() -> dict[str, Any]:
    """preprocessor_config.json."""
    return {
        "size": {"longest_edge": LONGEST},
        "max_image_size": {"longest_edge": SIDE},
        "do_image_splitting": True,
        "resample": 1,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
    }


def reference_processor(**changes: Any) -> Any:
    """transformers' own, on Pillow."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    return Idefics3ImageProcessorPil(**{**processor_settings(), **changes})


def tokenizer() -> Tokenizer:
    """Bytes, and the tokens of images."""
    return Tokenizer.from_str(json.dumps(tokenizer_json()))


def document(template: str = TEMPLATE, **more: Any) -> bytes:
    """Tokenizer assets of a model that sees."""
    assets = {"tokenizer": tokenizer_json(), "chat_template": template, "images": STATED, **more}
    return json.dumps(assets).encode()


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """An image of smooth random colours."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file."""
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def tokenizer_json() -> dict[str, Any]:
    """tokenizer.json."""
    vocabulary = {token: number for number, token in enumerate([*TOKENS, *byte_characters()])}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **special} for number, token in enumerate(TOKENS)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {**model, "vocab": vocabulary, "merges": []},
    }
