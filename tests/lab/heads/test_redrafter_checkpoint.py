"""A ReDrafter head on disk: what is written is read, and what does not fit is named."""

import json

import pytest
import torch
from lab_head_cases import REDRAFTER
from tiny_models import as_loaded, tiny_llama

from lab.heads.redrafter.checkpoint import write_redrafter
from smartspec.engine.drafting.head.kinds import kind_of, load_head


@pytest.fixture
def folder(tmp_path):
    write_redrafter(tmp_path, REDRAFTER.make(), "tiny")
    return tmp_path


def test_what_is_written_is_read(folder):
    assert kind_of(folder) == "redrafter"
    written, (found, embedding) = REDRAFTER.make(), load_head(folder, as_loaded(tiny_llama(0)))
    assert embedding is None and found.config == written.config
    for name, tensor in written.state_dict().items():
        expected = tensor if name == "token_map" else tensor.to(torch.bfloat16).float()
        assert torch.equal(found.state_dict()[name], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "hidden states of size 64, the target's are of 32"),
        ({"vocab_size": 99}, "a vocabulary of 99 tokens, the target has 61"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size is 'many', it must be a number"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"draft_vocab_size": 9}, r"is \(40,.*its config says \(9"),
        ({"num_hidden_layers": 3}, "lacks 2 weights, 'blocks.2.bias'"),
    ],
)
def test_what_does_not_fit_is_named(folder, change, message):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises((ValueError, OSError), match=message):
        load_head(folder, as_loaded(tiny_llama(0)))
