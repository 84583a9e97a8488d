"""Rotary position embeddings by table are those of the model's own module, or there is no table."""

import pytest
import torch
from fused_models import stock_model

from smartspec.engine.models import rotary_table as tables
from smartspec.engine.models.rotary_table import rotary_table

POSITIONS = torch.tensor([[0, 3, 3, 126, 127, 5]])
STRETCHED = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}


def rotary_of(**changes: object):
    return stock_model("llama", **changes).model.rotary_emb


@pytest.mark.parametrize(
    "parameters", [None, {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}]
)
def test_it_holds_what_the_module_computes(parameters):
    rotary, hidden = (
        rotary_of(**({"rope_parameters": parameters} if parameters else {})),
        torch.empty(1, 6, 36),
    )
    table = rotary_table(rotary, 128)
    assert table is not None
    assert all(map(torch.equal, table(hidden, POSITIONS), rotary(hidden, POSITIONS)))


def test_frequencies_that_depend_on_the_length_of_the_text_have_none():
    changes = {"rope_parameters": STRETCHED, "max_position_embeddings": 32}
    assert rotary_table(rotary_of(**changes), 128) is None
    assert rotary_table(rotary_of(**changes), 32) is not None, "up to that length they do not"


def test_a_large_one_is_not_kept(monkeypatch):
    monkeypatch.setattr(tables, "MAX_BYTES", 2 * 128 * 8 * 4 - 1)
    assert rotary_table(rotary_of(), 128) is None
