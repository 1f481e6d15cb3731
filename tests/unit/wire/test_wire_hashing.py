"""Prefix chains: what two of them have in common, and what their roots keep apart."""

from itertools import combinations

import pytest

from polyfleet.wire.hashing import ROOT_HASH, cache_salt, chain_hashes, prefix_root, seen_by

IDS = list(range(64))


def test_equal_beginnings_have_equal_hashes() -> None:
    one, other = list(chain_hashes(IDS, 16)), list(chain_hashes([*IDS[:40], *IDS], 16))
    assert len(one) == 4
    assert one[:2] == other[:2]
    assert set(one[2:]).isdisjoint(other[2:])


def test_chains_of_different_models_and_tenants_have_nothing_in_common() -> None:
    roots = [prefix_root(model, cache_salt(who)) for model in ("", "f1", "f2") for who in ("", "a", "b")]
    chains = [set(chain_hashes(IDS, 16, root)) for root in roots]
    assert all(one.isdisjoint(other) for one, other in combinations(chains, 2))


@pytest.mark.parametrize(("one", "other"), [(("ab", b"c"), ("a", b"bc")), (("a", b""), ("", b"a"))])
def test_model_and_salt_are_not_taken_for_one_another(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    assert prefix_root(*one) != prefix_root(*other)


def test_a_salt_is_the_same_everywhere_and_no_name() -> None:
    assert cache_salt("team-a").hex() == "1f75cd672ffb5568fdb8912d41c70b8a"
    assert cache_salt("") == b""
    assert prefix_root("", b"") == ROOT_HASH


def test_grains_of_images_are_told_apart() -> None:
    root = prefix_root("model")
    assert seen_by(root, ()) == root
    assert len({root, seen_by(root, [b"a"]), seen_by(root, [b"b"]), seen_by(root, [b"a", b"b"])}) == 4


def test_chains_of_adapters_have_nothing_in_common() -> None:
    salts = [(b"", ""), (b"", "a"), (b"", "b"), (b"s", ""), (b"s", "a"), (b"a", "")]
    assert len({prefix_root("f", *each) for each in salts}) == len(salts)
    assert prefix_root("", b"", "a") != ROOT_HASH
    assert prefix_root("f", b"s", "") == prefix_root("f", b"s")
