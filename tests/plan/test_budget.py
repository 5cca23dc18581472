"""What people write for a budget, and what it means in bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import UsageError
from mergepipe.plan.budget import Budget, parse_budget

FULL, BLOCK = 1_000_003, 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Budget("100%")),
        ("100%", Budget("100%")),
        ("250 %", Budget("250 %")),
        ("30%", Budget("30%", 300_000)),
        (" 30 % ", Budget("30 %", 300_000)),
        ("0%", Budget("0%", 0)),
        ("12.5%", Budget("12.5%", 125_000)),
        (".1%", Budget(".1%", 1000)),
        ("99.9999%", Budget("99.9999%", 1_000_001)),
        ("0.1%", Budget("0.1%", 1000)),
        ("2kB", Budget("2kB", 2000)),
        ("2KiB", Budget("2KiB", 2048)),
        ("0", Budget("0", 0)),
        ("5000", Budget("5000", 5000)),
        ("1000002", Budget("1000002", 1_000_002)),
        ("1000003", Budget("1000003")),
        ("5GB", Budget("5GB")),
        ("7blocks", Budget("7blocks", 7000, 7)),
        ("1 block", Budget("1 block", 1000, 1)),
        ("0blocks", Budget("0blocks", 0, 0)),
        ("5000 Blocks", Budget("5000 Blocks", FULL, 5000)),
    ],
)
def test_shares_bytes_and_blocks(text: str | None, expected: Budget) -> None:
    """Shares are rounded down; what reaches the full read lifts the cap; blocks state their bytes."""
    assert parse_budget(text, FULL, BLOCK) == expected


@pytest.mark.parametrize(
    "text", ["", "-5%", "-1", "30percent", "%", "1e3%", "lots", "5 blocks please", "1.2.3", ".", "nan%", "3.5blocks"]
)
def test_anything_else_is_refused_with_all_forms(text: str) -> None:
    """The message repeats the text and says what would do."""
    with pytest.raises(UsageError, match="--budget") as caught:
        parse_budget(text, FULL, BLOCK)
    assert repr(text) in str(caught.value)
    assert "30%" in str(caught.value)
    assert "blocks" in str(caught.value)


@pytest.mark.parametrize(("text", "share"), [("0.3", "30%"), (" .05 ", "5%"), ("1.0", "100%")])
def test_a_bare_fraction_is_ambiguous(text: str, share: str) -> None:
    """0.3 may mean a share or bytes: the share is offered, nothing is guessed."""
    with pytest.raises(UsageError, match=f"ambiguous.*{share}"):
        parse_budget(text, FULL, BLOCK)


@given(st.decimals(0, 99, places=3), st.integers(1, 1 << 50))
def test_a_share_is_never_exceeded(share: object, full: int) -> None:
    """The cap is the largest whole number of bytes within the share."""
    cap = parse_budget(f"{share}%", full, BLOCK).cap
    thousandths = int(str(share).replace(".", ""))
    assert cap == thousandths * full // 100_000
