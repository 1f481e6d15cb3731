"""The mask of a grammar: it goes on from wherever its sequence is, and says why it can't."""

import json

import pytest
from tests.support.text_assets import assets_document, byte_level_tokenizer

from polyfleet.sampling.grammar import GrammarError, GrammarMask, Grammars
from polyfleet.sampling.masks import all_tokens

TOKENIZER = byte_level_tokenizer()
VOCABULARY = 640  # more than the tokenizer has, as models do
END, OTHER_END = 2, 1
GRAMMAR = json.dumps({"grammars": [{"lark_grammar": 'start: /[a-z ]{3,40}/ "!"'}]})
WHOLE = TOKENIZER.encode("the quick fox!").ids


def grammars() -> Grammars:
    return Grammars(assets_document(), VOCABULARY, [END, VOCABULARY + 5])


def allowed(mask: GrammarMask, ids: list[int]) -> list[int]:
    bits = all_tokens(VOCABULARY)
    mask.fill(ids, bits)
    return [each for each in range(VOCABULARY) if bits[each // 32] >> each % 32 & 1]


def test_a_mask_goes_on_where_another_one_stopped() -> None:
    compiled = grammars()
    one = compiled.mask(GRAMMAR)
    for count in range(len(WHOLE)):
        found = allowed(one, WHOLE[:count])
        assert WHOLE[count] in found
        assert max(found) < TOKENIZER.get_vocab_size()
        assert END not in found
        assert allowed(compiled.mask(GRAMMAR), WHOLE[:count]) == found  # moved, or preempted elsewhere
    assert allowed(one, WHOLE) == [END]


def test_a_mask_goes_back_before_drafts_that_prove_wrong() -> None:
    compiled = grammars()
    one, other = compiled.mask(GRAMMAR), TOKENIZER.encode("the slow cat!").ids
    same = next(at for at, (mine, its) in enumerate(zip(WHOLE, other, strict=False)) if mine != its)
    for count in range(len(other)):
        known = other[:count]
        assert allowed(one, known) == allowed(compiled.mask(GRAMMAR), known)
        for ahead in range(count + 1, min(count + 4, len(WHOLE)) if count <= same else 0):
            drafted = [*known, *WHOLE[count:ahead]]
            assert allowed(one, drafted) == allowed(compiled.mask(GRAMMAR), drafted)
    assert allowed(one, other) == [END]
    assert allowed(one, other[:-1]) == allowed(compiled.mask(GRAMMAR), other[:-1])  # back behind the end


def test_what_else_ends_a_sequence_may_end_it_where_the_grammar_does() -> None:
    mask = grammars().mask(GRAMMAR, [OTHER_END])
    assert OTHER_END not in allowed(mask, WHOLE[:2])
    assert allowed(mask, WHOLE) == [OTHER_END, END]


@pytest.mark.parametrize(
    ("grammar", "problem"), [("start: foo", "unknown name"), ("{", "the grammar can't be used"), ("", "can't be used")]
)
def test_a_bad_grammar_is_told(grammar: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem) as caught:
        allowed(grammars().mask(grammar), [])
    assert "\n" not in str(caught.value)


def test_a_token_that_does_not_follow_is_told() -> None:
    with pytest.raises(GrammarError, match="can't be gone on with"):
        allowed(grammars().mask(GRAMMAR), TOKENIZER.encode("THE").ids)


def test_a_mask_that_costs_too_much_is_told_and_ends_nothing() -> None:
    pattern = "|".join(f".*{letter}.{{60}}" for letter in "abcdefghijklmnopqrstuvwxyz")
    mask = grammars().mask(json.dumps({"grammars": [{"json_schema": {"type": "string", "pattern": pattern}}]}))
    ids = TOKENIZER.encode('"hello, world abcdefghijklm abababbaba abbababababababababab').ids
    with pytest.raises(GrammarError, match="can't be gone on with: lexer error: too many"):
        assert all(allowed(mask, ids[:count]) != [END] for count in range(len(ids)))


def test_a_model_without_end_tokens_is_told() -> None:
    with pytest.raises(GrammarError, match="no end token"):
        allowed(Grammars(assets_document(), VOCABULARY, []).mask(GRAMMAR), [])
