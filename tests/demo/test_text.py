"""The demo's text."""

from __future__ import annotations

import pytest

from mergepipe.demo.text import NAMES, domains
from mergepipe.errors import SourceError


def test_every_domain_has_enough() -> None:
    """This Python brings text of all three kinds, some hundred kilobytes each, and some to measure with."""
    found = domains()
    assert tuple(domain.name for domain in found) == NAMES
    for domain in found:
        assert sum(map(len, domain.train)) > 200_000
        assert sum(map(len, domain.held_out)) > 20_000


def test_nothing_measured_was_trained_on() -> None:
    """No document is in both halves of a domain, nor in two domains."""
    seen: set[bytes] = set()
    for domain in domains():
        both = [*domain.train, *domain.held_out]
        distinct = {document for document in both if len(document) > 100}
        assert len(distinct) == sum(len(document) > 100 for document in both)
        assert not distinct & seen
        seen |= distinct


def test_the_text_is_the_same_every_time() -> None:
    """Nothing but the version of Python decides what the text is."""
    assert domains() == domains()


def test_a_stripped_python_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the standard library has no sources the error names the domain and both sizes."""
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    with pytest.raises(SourceError, match=r"'code' has 0 bytes of text in this Python, 200,000 are needed"):
        domains()
