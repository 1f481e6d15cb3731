"""Images are cut and spelled as transformers' own processor does it; what is none is refused."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from tests.support import tiny_vision
from tests.support.tiny_vision import ROWS, SIDE, STATED, TEMPLATE, document, encoded, picture

from polyfleet.text.errors import TextAssetsError
from polyfleet.text.images import MAX_PIXELS, ImageSettings, prepare
from polyfleet.text.process import PreparedImage, PrepareImage, Refused, Server
from polyfleet.text.prompt_text import PromptText
from polyfleet.wire.images import Image as Shown
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Message

SETTINGS = ImageSettings(**STATED)
SIZES = [(40, 30), (30, 40), (16, 16), (100, 7), (7, 100), (1, 1), (3, 200), (300, 299)]


def crops(pixels: bytes) -> Any:
    return np.frombuffer(pixels, dtype=np.uint8).reshape(-1, SIDE, SIDE, 3)


@pytest.mark.parametrize("split", [True, False])
def test_crops_are_those_of_transformers(split: bool) -> None:
    reference = tiny_vision.reference_processor(do_image_splitting=split)
    settings = ImageSettings(**{**STATED, "split": split})
    for width, height in SIZES:
        image = picture(width, height, seed=width)
        grid, pixels = prepare(encoded(image), settings)
        expected = reference(image, return_tensors="np", return_row_col_info=True)
        assert [[grid[0]], [grid[1]]] == [expected["rows"][0], expected["cols"][0]]
        values = (crops(pixels).astype(np.float32) / 255 - 0.5) / 0.5
        np.testing.assert_allclose(values.transpose(0, 3, 1, 2), expected["pixel_values"][0], atol=1e-6)


def test_prompts_are_those_of_transformers() -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=None, tokenizer_object=tiny_vision.tokenizer(), eos_token="<end_of_utterance>"
    )
    images = [picture(50, 30), picture(100, 7, seed=1)]
    processor = transformers.Idefics3Processor(
        tiny_vision.reference_processor(), tokenizer, image_seq_len=ROWS, chat_template=TEMPLATE
    )
    contents: list[list[Any]] = [[images[0], "What is\nit?"], ["A first", " and ", images[1], "that. ", images[0]]]
    for content in contents:
        parts = [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image"} for each in content]
        shown = [each for each in content if not isinstance(each, str)]
        text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
        expected = processor(text=text, images=[shown], return_tensors="np")["input_ids"][0].tolist()
        message = Message("user", tuple(each if isinstance(each, str) else Shown() for each in content))
        grids = [prepare(encoded(each), SETTINGS)[0] for each in shown]
        assert PromptText(document()).encode_chat([message], grids=grids).token_ids == expected


def test_texts_spell_no_images() -> None:
    """Nor does a template that has room for fewer images than are shown."""
    spelled = PromptText(document()).encode_chat([Message("user", "<image> <fake_token_around_image>")])
    assert tiny_vision.IMAGE_ID not in spelled.token_ids
    message = Message("user", (Shown(), "Hi <image>"))
    with pytest.raises(FieldError, match="messages: show 2 images, but the model's chat template has room for 1"):
        PromptText(document()).encode_chat([message], grids=[(0, 0), (0, 0)])
    texts = "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}"
    with pytest.raises(FieldError, match="show 1 images, but the model's chat template has room for 0"):
        PromptText(document(texts)).encode_chat([message], grids=[(0, 0)])


def _animated() -> bytes:
    out = io.BytesIO()
    picture(20, 20).save(out, "GIF", save_all=True, append_images=[picture(20, 20, seed=1)])
    return out.getvalue()


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "text": (lambda: b"hello", "is no image of a kind that is read: PNG, JPEG"),
    "SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no image of a kind"),
    "nothing": (lambda: b"", "is no image of a kind"),
    "truncated PNG": (lambda: encoded(picture(99, 99))[:-400], "is a truncated or corrupt image"),
    "truncated JPEG": (lambda: encoded(picture(99, 99), "JPEG")[:900], "is a truncated or corrupt image"),
    "PNG without its end": (lambda: encoded(picture(99, 99))[:-1], "is a truncated image: its end is missing"),
    "GIF without its end": (lambda: encoded(picture(99, 99), "GIF")[:-1], "is a truncated image: its end is missing"),
    "head alone": (lambda: encoded(picture(9, 9))[:20], "is a truncated or corrupt image|is no image"),
    "animated GIF": (_animated, "is animated or has several pages"),
    "bomb": (lambda: encoded(Image.new("1", (MAX_PIXELS // 4000 + 1, 4000))), "pixels, but images may have 25,000,000"),
    "fractions": (lambda: encoded(Image.new("F", (9, 9)), "TIFF"), "has numbers with fractions"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_still_image_is_refused(kind: str) -> None:
    make, problem = REFUSED[kind]
    with pytest.raises(FieldError, match=problem):
        prepare(make(), SETTINGS)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of how a TIFF is broken
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_no_part_of_a_file_is_taken_for_it(form: str) -> None:
    data = encoded(picture(16, 11), form)
    for size in {*range(1, 64), *range(64, len(data), 31), *range(len(data) - 24, len(data))}:
        with pytest.raises(FieldError, match=r"is no image|corrupt|truncated"):
            prepare(data[:size], SETTINGS)
    assert prepare(data, SETTINGS) == prepare(data + b"\0\0", SETTINGS)


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        *(("RGBA", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("1", "PNG"), ("CMYK", "JPEG")),
        *(("RGB", "WEBP"), ("P", "GIF"), ("RGB", "BMP"), ("RGB", "TIFF")),
    ],
)
def test_every_mode_becomes_colours(mode: str, form: str) -> None:
    data = encoded(picture(40, 30).convert(mode), form)
    _, pixels = prepare(data, SETTINGS)
    with Image.open(io.BytesIO(data)) as image:
        _, expected = prepare(encoded(image.convert("RGB")), SETTINGS)
    assert pixels == expected


def test_wide_channels_and_turned_photographs() -> None:
    _, pixels = prepare(encoded(Image.new("I;16", (40, 30), 0x8040)), SETTINGS)
    assert set(pixels) == {0x80}
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by a quarter
    turned = picture(40, 30).transpose(Image.Transpose.ROTATE_90)
    assert prepare(encoded(turned, exif=exif.tobytes()), SETTINGS) == prepare(encoded(picture(40, 30)), SETTINGS)


def test_the_process_answers_whatever_it_is_given() -> None:
    server = Server()
    server._text = PromptText(document())
    assert server.answer(PrepareImage(5.0, b"hello")) == Refused("", f"{REFUSED['text'][1]}, WEBP, GIF, BMP, TIFF")
    answer = server.answer(PrepareImage(5.0, encoded(picture(40, 30))))
    assert isinstance(answer, PreparedImage)
    assert answer.grid == (2, 2)
    server._text = PromptText(document(images=None))
    assert server.answer(PrepareImage(5.0, b"")) == Refused("messages", "show images, but this model sees none")


@pytest.mark.parametrize("change", [{"side": 0}, {"rows": SIDE**2 + 1}, {"longest_edge": 99999}])
def test_sizes_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TextAssetsError, match="images have sizes that are out of range"):
        PromptText(document(images={**STATED, **change}))


@pytest.mark.parametrize("change", [{"rows": "4"}, {"resample": "bad"}])
def test_settings_of_another_kind_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TextAssetsError, match="images"):
        PromptText(document(images={**STATED, **change}))
