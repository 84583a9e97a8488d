"""The heads of the lab in the tests of the engine's: drafts as in plain torch, outputs as in plain decoding."""

import pytest
from head_cases import HeadCase
from lab_head_cases import MEDUSA, MEDUSA_OUTPUTS, REDRAFTER
from test_head_kinds import (
    attention,
    test_beside_the_ngram_tree_a_head_drafts_as_deep_in_a_pass_as_alone,
    test_drafts_are_those_of_plain_torch,
    test_features_without_numbers_make_drafts_that_can_be_verified,
    test_one_pass_makes_a_whole_draft,
    test_outputs_are_those_of_plain_decoding,
)

__all__ = [
    "attention",
    "test_beside_the_ngram_tree_a_head_drafts_as_deep_in_a_pass_as_alone",
    "test_drafts_are_those_of_plain_torch",
    "test_features_without_numbers_make_drafts_that_can_be_verified",
    "test_one_pass_makes_a_whole_draft",
    "test_outputs_are_those_of_plain_decoding",
]


@pytest.fixture(params=[MEDUSA, MEDUSA_OUTPUTS, REDRAFTER], ids=str)
def case(request) -> HeadCase:
    return request.param
