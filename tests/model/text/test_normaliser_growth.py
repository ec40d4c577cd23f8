"""model.text.normaliser_growth: rules that make gigabytes of a sentence are refused at load."""

from __future__ import annotations

import pytest
from tokenizers import Regex, normalizers

from model.errors import TokenizerError
from model.text.normaliser_growth import check_growth

EIGHTFOLD = normalizers.Replace("a", "a" * 8)


@pytest.mark.parametrize(
    "rules",
    [
        None,
        normalizers.NFKC(),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), "▁")]),
        normalizers.BertNormalizer(),
        EIGHTFOLD,
    ],
)
def test_ordinary_rules_pass(rules):
    """Those of real tokenizers, and a little more."""
    check_growth(rules)


@pytest.mark.parametrize(
    "rules",
    [
        normalizers.Sequence([EIGHTFOLD] * 8),
        normalizers.Sequence([normalizers.Sequence([EIGHTFOLD] * 4)] * 2),
        normalizers.Replace("a", "b" * 100_000),
        normalizers.Replace(Regex(""), "b" * 100_000),
        normalizers.Sequence([normalizers.Replace(Regex("."), "aa")] * 20),
    ],
)
def test_rules_that_multiply_are_refused(rules):
    """Whatever they are made of; the message has the number."""
    with pytest.raises(TokenizerError, match="times as long"):
        check_growth(rules)
