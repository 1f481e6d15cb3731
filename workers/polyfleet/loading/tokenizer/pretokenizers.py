"""Pre-tokenizers of BPE vocabularies, by the names that GGUF metadata gives them.

Each is a `tokenizers` JSON object. The patterns are those of the models' own published tokenizers; GGUF's names for
them are listed in https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf_update.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before merging, and what goes with it in the model's tokenizer."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False  # a piece that is a whole token is taken as it is
    add_bos: bool = False  # what holds when the file does not say
    add_sep: bool = False  # whether a separator ends a text
    characters: bool = False  # whether tokens are made of characters, and <0x..> of bytes; else of bytes alone


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    """GPT-2's mapping of bytes to characters, behind GPT-2's own splitting if `use_regex`."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _splits(*patterns: str, **more: Any) -> PreTokenizer:
    """Each pattern splits what the ones before have left whole."""
    return PreTokenizer((*map(_split, patterns), _byte_level(False)), **more)


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CAPITALS, SMALLS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(
    digits: str, *, contractions: str = f"{CONTRACTIONS}|", letters: str = r"\p{L}", spaces: str = SPACES
) -> str:
    """Llama 3's pattern; `digits` says how many digits make a piece."""
    marks = letters.removeprefix(r"\p{L}")
    return (
        rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?{f'[{letters}]' if marks else letters}+|\p{{N}}{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{spaces}"
    )


def _cased(digits: str, *, ending: str = f"{CONTRACTIONS}?", behind: str = r"[\r\n/]*", no_han: bool = False) -> str:
    """GPT-4o's pattern: words are cut where small letters are followed by capitals."""
    capitals, smalls = (f"[{each}&&[^\\p{{Han}}]]" if no_han else each for each in (CAPITALS, SMALLS))
    first = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{first}{capitals}*{smalls}+{ending}|{first}{capitals}+{smalls}*{ending}"
        rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+{behind}|{SPACES}"
    )


SPACE = "▁"  # how SentencePiece writes a space
DIGIT_STEP = {"type": "Digits", "individual_digits": True}
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
MARKED = rf"{ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
CJK, HAN_AND_KANA = r"[一-龥ࠀ-一가-퟿]+", r"[一-龥぀-ゟ゠-ヿ]+"
FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"  # groups of three digits, the first of which may have fewer
BLOOM_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
CASED_LETTERS = (  # of all alphabets that have two cases
    r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿ\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}Ҋ-ԯԱ-Ֆ"
    r"\x{10a0}-\x{10c5}Ꭰ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}"
    r"\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}"
    r"\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}"
    r"\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}"
    r"\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    r"Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
MANY_SCRIPTS = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
RUNS_OF_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))

GPT2 = PreTokenizer((_byte_level(True),))
DIGITS = PreTokenizer((DIGIT_STEP, _byte_level(True)))
LLAMA3 = _splits(_words("{1,3}"), ignore_merges=True, add_bos=True)
THREE_DIGITS = _splits(_words("{1,3}"))
ONE_DIGIT = _splits(_words(""))
QWEN2 = replace(ONE_DIGIT, normalizer={"type": "NFC"})
QWEN35 = _splits(_words("", letters=r"\p{L}\p{M}"), normalizer={"type": "NFC"})
DEEPSEEK3 = _splits(r"\p{N}{1,3}", HAN_AND_KANA, rf"{MARKED}[\r\n]*|{SPACES}")
GPT4O = _splits(_cased("{1,3}"))
BLOOM = _splits(BLOOM_WORDS)
KIMI = _splits(r"\p{Han}+|" + _cased("{1,3}", behind=r"[\r\n]*", no_han=True))
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"
EXAONE_MOE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
LINES = PreTokenizer(
    (_split(r"\n+"),),
    normalizer={"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    characters=True,
)
UNSPACED = PreTokenizer(({"type": "WhitespaceSplit"},), characters=True)

_NAMES: tuple[tuple[PreTokenizer, str], ...] = (
    (GPT2, "default gpt-2 phi-2 olmo mpt jais trillion granite-docling gigachat a.x-4.0 mellum modern-bert exaone4"),
    (GPT2, "jina-es jina-de jina-v2-es jina-v2-de"),
    (replace(GPT2, add_sep=True), "jina-v1-en jina-v2-code roberta-bpe"),
    (DIGITS, "smollm starcoder refact codeshell command-r exaone minerva-7b mellum2"),
    (LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"),
    (THREE_DIGITS, "dbrx smaug-bpe glm4 chatglm-bpe"),
    (ONE_DIGIT, "stablelm2 hunyuan solar-open grok-2"),
    (QWEN2, "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez"),
    (QWEN35, "qwen35"),
    (_splits(_words("", contractions="")), "ufakzeka"),
    (_splits(r"[^\n]+|[\n]+", _words("")), "laguna"),
    (_splits(r"\p{N}{1,3}", _words("+"), ignore_merges=True), "minicpm5"),
    (_splits(_words("{1,3}", spaces=rf"\s*[\r\n]+|{RUNS_OF_SPACES}|\s")), "jais-2"),
    (DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (_splits(FROM_THE_RIGHT, MANY_SCRIPTS, rf"{MARKED}[\r\n]*|{SPACES}"), "afmoe"),
    (_splits(r"\p{N}{1,3}", HAN_AND_KANA, rf"{MARKED}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"), "spark2_5"),
    (
        _splits(r"[\r\n]", rf"\s?[{CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+"),
        "deepseek-llm",
    ),
    (_splits(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"), "deepseek-coder"),
    (_splits(r"[\p{P}\$\+<=>\^~\|`]+", GPT2_PATTERN, r"[0-9][0-9][0-9]"), "falcon"),
    (BLOOM, "poro-chat bloom gpt3-finnish"),
    (_splits(BLOOM_WORDS, r"\p{N}"), "viking"),
    (_splits(_cased("", ending=""), ignore_merges=True, add_bos=True), "tekken"),
    (GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (replace(GPT4O, ignore_merges=True), "granite-embed-multi-97m"),
    (_splits(r"\d{1,3}(?=(?:\d{3})*\b)", _cased("{1,3}")), "tiny_aya cohere2moe"),
    (_splits(YOUTU_SCRIPTS, _cased(""), ignore_merges=True), "youtu"),
    (KIMI, "kimi-k2"),
    (_splits(r"\p{N}+", r"(?=(\d{3})+(?!\d))"), "superbpe"),
    (_splits(BAILING), "bailingmoe bailingmoe2 llada-moe"),
    (_splits(SEED), "seed-coder"),
    (_splits(EXAONE_MOE), "exaone-moe"),
    (
        _splits(
            *(r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}"),
            *(r"[\p{P}!-/:-@\[-`{-~]", GPT2_PATTERN),
            add_bos=True,
        ),
        "chameleon",
    ),
    (LINES, "gemma4 granite-embed-multi-311m sarvam-moe"),
    (UNSPACED, "whitespace"),
)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {name: each for each, names in _NAMES for name in names.split()}
