"""Rotary position embeddings by table are those of the model's own module, or there is no table."""

from fused_models import stock_model

from smartspec.engine.models import rotary_table as tables
from smartspec.engine.models.rotary_table import rotary_table

STRETCHED = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}


def rotary_of(**changes: object):
    return stock_model("llama", **changes).model.rotary_emb


def test_frequencies_that_depend_on_the_length_of_the_text_have_none():
    changes = {"rope_parameters": STRETCHED, "max_position_embeddings": 32}
    assert rotary_table(rotary_of(**changes), 128) is None
    assert rotary_table(rotary_of(**changes), 32) is not None, "up to that length they do not"


def test_a_large_one_is_not_kept(monkeypatch):
    monkeypatch.setattr(tables, "MAX_BYTES", 2 * 128 * 8 * 4 - 1)
    assert rotary_table(rotary_of(), 128) is None
