"""Checks that training data come from the target: from its tokenizer and from its own passes.

A head trained on data of another model would meet other texts and features in use."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from lab.train.shards import shard_paths
from lab.train.signals import read_signals, signals_of
from smartspec.engine.models.taps import tapped
from smartspec.texts.shards import read_shard, tokenizer_digest, tokenizer_of

# of features, relative: kernels, blocks of weights and float16 round by a few hundredths
MAX_DIFFERENCE = 0.25


def check_tokenizer(
    data: Path, model: str, tokenizer: PreTrainedTokenizerBase, report: Callable[[str], None]
) -> None:
    """Raises ValueError naming the shard of a data folder that another tokenizer made. Of shards
    that do not say which one did, report says so, and how many of their prompts this tokenizer
    would write otherwise."""
    expected, silent = tokenizer_digest(tokenizer), []
    for path in shard_paths(data):
        digest = tokenizer_of(path)
        if digest and digest != expected:
            raise ValueError(
                f"{path} was made with another tokenizer than that of {model!r}: use the model "
                "that wrote the texts, or generate texts with this one in a new folder"
            )
        if not digest:
            silent.append(path)
    prompts = [
        row.token_ids[: row.answer_start].tolist() for path in silent for row in read_shard(path)
    ]
    if num_different := sum(_again(tokenizer, prompt) != prompt for prompt in prompts):
        report(
            f"warning: {len(silent)} shards of {data} do not say which tokenizer made them, and "
            f"that of {model!r} writes {num_different} of their {len(prompts)} prompts otherwise: "
            "a head learns from tokens that it will seldom meet, better generate texts in a new "
            "folder"
        )


def _again(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> list[int]:
    text = tokenizer.decode(
        token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def check_target(data: Path, model: str, target: nn.Module, taps: tuple[int, ...]) -> None:
    """Raises ValueError where the features of the shortest row of the last shard are not what the
    target computes. taps: the layers they are of. target: a stock model; it is left with
    transformers' own attention."""
    shard = shard_paths(data)[-1]
    rows = read_shard(shard)
    row, signals = min(
        zip(rows, read_signals(signals_of(shard), rows), strict=True),
        key=lambda each: len(each[0].token_ids),
    )
    target.set_attn_implementation("eager")
    with torch.inference_mode(), tapped(target, taps) as found:
        target(
            input_ids=torch.from_numpy(row.token_ids[None, :-1].astype(np.int64)), use_cache=False
        )
    computed, recorded = (
        torch.cat(found, dim=-1)[0].double(),
        torch.from_numpy(signals.features).double(),
    )
    difference = float((computed - recorded).norm() / computed.norm())
    if not difference < MAX_DIFFERENCE:
        raise ValueError(
            f"{signals_of(shard)} differs by {difference:.0%} from what {model!r} computes: it is "
            "of another model, or of this one before it was changed; delete "
            f"{signals_of(shard).parent}, then the same command computes it anew"
        )
