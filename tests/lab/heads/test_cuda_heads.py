"""Heads and early exits of the lab on a CUDA device, `make test-gpu`."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [
    *(str(HERE.parents[1] / "engine" / folder) for folder in ("", "drafting", "runtime")),
    str(HERE),
]
from test_cuda import DEVICE, GREEDY, plain, test_texts_are_those_without_drafts  # noqa: E402
from test_exact_head import Counting, eagle_pair, generate, make_core  # noqa: E402
from test_exact_medusa import medusa_pair  # noqa: E402

__all__ = ["plain"]
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "drafter",
    [
        "lab.drafters.ngram_tree:NgramTree",
        "lab.heads.exits:Exit:2",
        "lab.drafters.self_draft:SelfDraft:8",
    ],
)
def test_texts_of_drafters_of_the_lab_are_those_without_drafts(plain, drafter):
    test_texts_are_those_without_drafts(plain, f"lab.{drafter}", "fixed:3", GREEDY)


@pytest.mark.parametrize("max_width", [1, 4])
@pytest.mark.parametrize("pair", [eagle_pair, medusa_pair])
def test_drafts_of_heads_are_accepted_and_change_no_text(pair, max_width):
    """Heads that foresee their targets, in chains and trees, with preemption and cached
    prefixes."""
    texts = []
    for pause in (1.0, 0.2):
        loaded, head = pair()  # anew: a runner takes its head over
        loaded = replace(loaded, model=loaded.model.to(DEVICE), device=DEVICE)
        core = make_core(loaded, head, 24, pause, max_width, 0, Counting)
        texts.append([request.token_ids.tolist() for request in generate(core)])
    assert texts[0] == texts[1] and core.controller.num_accepted > 20
