"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.units import format_bytes, parse_bytes
from mergepipe.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("17", 17), ("17B", 17), ("1 b", 1),
        ("3k", 3000), ("3kB", 3000), ("5 GB", 5 * 10**9), ("2M", 2 * 10**6), ("1TB", 10**12), ("4t", 4 * 10**12),
        ("512MiB", 512 << 20), ("2gib", 2 << 30), ("1KIB", 1024), ("1 TiB", 1 << 40), ("  7 MiB  ", 7 << 20),
        ("1.5GiB", 3 << 29), (".5kB", 500), ("2.kB", 2000), ("0.9B", 0),
    ],
)  # fmt: skip
def test_decimal_units_are_powers_of_1000_and_binary_ones_of_1024(text: str, expected: int) -> None:
    """Case and spaces do not matter, fractions are rounded down."""
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("1.001kB", 1001), ("4.35kB", 4350), ("0.29GB", 290_000_000)])
def test_fractions_are_exact(text: str, expected: int) -> None:
    """A decimal fraction of a unit is not first rounded to binary."""
    assert parse_bytes(text) == expected


def test_numbers_larger_than_a_float_are_exact() -> None:
    """Digits are not lost, and no number is too large to be read."""
    assert parse_bytes("123456789012345678901") == 123456789012345678901
    assert parse_bytes("1" + "0" * 400 + ".5 kB") == 10**403 + 500


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "1,5GB", "5 bytes", "5 G B", "0x10", "1..2", "nan", "5Gib/s"])
def test_anything_else_is_refused_with_the_option_named(text: str) -> None:
    """The message names the option, the text and the units."""
    with pytest.raises(UsageError, match="--memory") as caught:
        parse_bytes(text, "--memory")
    assert repr(text) in str(caught.value)
    assert "GiB" in str(caught.value)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (123456789, "117.7 MiB"), (3 << 29, "1.5 GiB"),
     (5 << 40, "5.00 TiB"), (-2048, "-2.0 KiB")],
)  # fmt: skip
def test_sizes_for_people(count: int, expected: str) -> None:
    """Whole bytes below 1 KiB, binary units above."""
    assert format_bytes(count) == expected


@given(st.integers(0, 1 << 60), st.sampled_from(["", "B", "kB", "MB", "KiB", "GiB"]))
def test_whole_numbers_are_exact_in_every_unit(count: int, unit: str) -> None:
    """Several units are n times one unit."""
    assert parse_bytes(f"{count}{unit}") == count * parse_bytes(f"1{unit}")
