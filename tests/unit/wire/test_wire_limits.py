"""Ranges: any number that JSON can hold is compared and named without a fault of ours."""

import math

import pytest

from polyfleet.wire.limits import FieldError, check_accelerator, check_range, shown
from polyfleet.wire.sampling import SamplingParams

HUGE = 10**400


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (HUGE, "must be from 1 to 16, not an integer of over 64 bits"),
        (-(10**4000), "must be from 1 to 16, not an integer of over 64 bits"),
        (2**64 - 1, "must be from 1 to 16, not 18446744073709551615"),
        (0, "must be from 1 to 16, not 0"),
        (16.5, "must be from 1 to 16, not 16.5"),
        (1e308, "must be from 1 to 16, not 1e+308"),
        (-0.0, "must be from 1 to 16, not -0"),
        (math.nan, "must be a finite number, not nan"),
        (-math.inf, "must be a finite number, not -inf"),
    ],
)
def test_what_is_out_of_range_is_told(value: float, told: str) -> None:
    with pytest.raises(FieldError) as caught:
        check_range("n", value, 1, 16)
    assert (caught.value.field, caught.value.problem) == ("n", told)


def test_the_bounds_are_in_range() -> None:
    check_range("n", 1, 1, 16)
    check_range("n", 16, 1, 16)
    with pytest.raises(FieldError, match="over 0 up to 1, not 0"):
        check_range("top_p", 0, 0, 1, open_low=True)


@pytest.mark.parametrize("field", ["temperature", "top_k", "seed", "presence_penalty"])
def test_sampling_fields_may_be_huge(field: str) -> None:
    with pytest.raises(FieldError, match=f"sampling.{field}: .* not an integer of over 64 bits"):
        SamplingParams(**{field: -HUGE}).check()


def test_numbers_are_shown_in_full_up_to_64_bits() -> None:
    assert [shown(17), shown(1_000_000), shown(-(2**63)), shown(0.1)] == ["17", "1000000", str(-(2**63)), "0.1"]


@pytest.mark.parametrize("name", ["", "auto", "CUDA", "9000", "a-", "a b", "a" * 64])
def test_what_can_be_no_accelerator_s_name_is_refused(name: str) -> None:
    with pytest.raises(FieldError, match=r"^accelerator"):
        check_accelerator("accelerator", name)


@pytest.mark.parametrize("name", ["cuda", "a", "my_chip-2", "a" * 63])
def test_a_third_party_s_name_may_be_an_accelerator_s(name: str) -> None:
    check_accelerator("accelerator", name)
