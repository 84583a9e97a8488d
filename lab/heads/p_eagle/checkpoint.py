"""P-EAGLE heads on disk: EAGLE-3's layout, and what stands for features that are not known."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from lab.heads.p_eagle.head import PEagleHead
from smartspec.engine.drafting.head.checkpoint.eagle3 import read_head
from smartspec.engine.drafting.head.eagle3 import HeadConfig

MASK_TOKEN = ("mask_token_id", "pard_token", "ptd_token_id")  # the names that vLLM knows
MAX_DEPTHS = 64
DEFAULT_DEPTHS = 8  # of a head that does not say: those of the library's training


def _maker(
    folder: Path, data: dict, config: HeadConfig, weights: dict[str, torch.Tensor]
) -> Callable[[], PEagleHead]:
    token_id = next((data[name] for name in MASK_TOKEN if data.get(name) is not None), None)
    if type(token_id) is not int or not 0 <= token_id < config.layer.vocab_size:
        raise ValueError(
            f"{folder}: mask_token_id is {token_id!r}, it must be a token of the "
            f"{config.layer.vocab_size} that the target has: use a head that was trained for it"
        )
    if "mask_hidden" in weights:
        weights["mask_hidden"] = weights["mask_hidden"].reshape(1, 1, -1)
    try:
        depths = data["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    except (KeyError, IndexError, TypeError):
        depths = DEFAULT_DEPTHS
    if type(depths) is not int or not 1 <= depths <= MAX_DEPTHS:
        raise ValueError(
            f"{folder}: speculative_tokens is {depths!r}, it must be 1 to {MAX_DEPTHS}: correct "
            "config.json"
        )
    return lambda: PEagleHead(config, token_id, depths)


read_p_eagle = partial(read_head, make=_maker)
