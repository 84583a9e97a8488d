"""Heads whose config.json or weights lie at random, loaded and run for drafts: python
lying_heads.py SEED COUNT.

Prints a line for each: refused, with the reason, or drafted. Memory that is read or written out of
bounds ends the process.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from eagle3_files import CONFIG, KEY, LAYER, SIZE, VOCABULARY, random, tensors, write
from tiny_models import tiny_runner

from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.kinds import head_drafter, load_head
from smartspec.engine.models.model_runner import ModelRunner

NUMBERS = (
    *(*range(-1, 9), 16, 24, 31, 33, 48, 61, 62, 64, 256, -(2**63), 2**20, 2**31, 2**62),
    *(2.5, True, None, "8", [8]),
)
ROPES = (
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.25},
    {"rope_theta": -1.0},
    {},
)
MAX_LEN = 64


def lie(choose: np.random.Generator, config: dict, found: dict) -> None:
    """One more thing that is not so."""

    def one_of(things):
        return things[int(choose.integers(len(things)))]

    layer, name = config["transformer_layer_config"], one_of(sorted(found))
    of_head = ("draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm")
    lies = (
        lambda: layer.update({one_of(sorted(LAYER)): one_of(NUMBERS)}),
        lambda: config.update({one_of(of_head): one_of(NUMBERS)}),
        lambda: layer.update(rope_parameters=one_of(ROPES)),
        lambda: config.update({KEY: [one_of(NUMBERS) for _ in range(int(choose.integers(4)))]}),
        lambda: found.update({name: resized(found[name])}),
        lambda: found.update(d2t=found["d2t"] + one_of((-1, 1, 20, 40, 2**31, 2**62))),
        lambda: found.pop(name),
        lambda: found.update(
            {"embed_tokens.weight": random(one_of((1, 60, 61, 70)), one_of((1, 8, SIZE, 64)))}
        ),
    )

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        shape = [max(0, size + one_of((-size, -1, 0, 1, size))) for size in tensor.shape]
        return torch.zeros(shape, dtype=tensor.dtype)

    one_of(lies)()


def odd_shape(choose: np.random.Generator) -> dict:
    """Sizes that fit each other, and that no published head has."""
    if choose.random() < 0.1:  # more heads over a key head, or larger ones, than our kernel takes
        large = {
            "num_attention_heads": 260,
            "num_key_value_heads": 1,
            "hidden_size": 260,
            "head_dim": 2,
        }
        return large if choose.random() < 0.5 else {"head_dim": 258}
    kv_heads = int(choose.integers(1, 4))
    heads = kv_heads * int(choose.choice([1, 2, 3, 7]))
    return {
        "num_key_value_heads": kv_heads,
        "num_attention_heads": heads,
        "hidden_size": heads * int(choose.integers(1, 9)),
        "intermediate_size": int(choose.integers(1, 80)),
        "head_dim": int(choose.choice([2, 6, 8, 10, 64])),
    }


def outcome(choose: np.random.Generator, folder: Path, target: ModelRunner) -> str:
    layer = LAYER | odd_shape(choose)
    config, found = copy.deepcopy(CONFIG) | {"target_hidden_size": SIZE}, tensors(layer=layer)
    config["transformer_layer_config"] = layer
    found["embed_tokens.weight"] = random(VOCABULARY, layer["hidden_size"])
    for _ in range(int(choose.integers(4))):
        if found:
            lie(choose, config, found)
    try:
        head, embedding = load_head(
            write(folder, json.loads(json.dumps(config)), found), target.loaded
        )
        runner = head_drafter(head, target, name="head", num_slots=4, embedding=embedding).runner
    except (ValueError, OSError) as error:
        return f"refused: {error}"
    runner.features.copy_(random(4, MAX_LEN, runner.features.shape[2]))
    texts = [
        Segment(slot, 0, np.arange(MAX_LEN - 1, dtype=np.int32) % VOCABULARY, 2)
        for slot in range(4)
    ]
    proposals = runner.propose(texts, None, 4)
    following = [Segment(slot, MAX_LEN - 1, np.array([5], dtype=np.int32), 1) for slot in range(4)]
    proposals = runner.propose(following, [1, 3, 5, 7], 4)
    assert ((proposals.token_ids >= 0) & (proposals.token_ids < VOCABULARY)).all()
    assert np.isfinite(proposals.chances).all() and (proposals.chances <= 1.001).all()
    return f"drafted {proposals.token_ids[0].tolist()}"


def main(seed: int, count: int) -> None:
    choose = np.random.default_rng(seed)
    target = tiny_runner(max_len=MAX_LEN, taps=(1, 2))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            print(outcome(choose, Path(folder) / str(number), target), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
