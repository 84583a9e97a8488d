"""Sampled texts with a seed under plain decoding and under decoding with drafts."""

import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import build_engine
from smartspec.engine.runtime.config import EngineConfig, parse_drafters

PROMPTS = (
    "ha ha ha ha ha ha ha ha ha ha",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
    "The river runs from the hills to the sea, and the road runs from the sea to the",
)
PENALTIES = ({}, {"frequency_penalty": 1.0}, {"presence_penalty": 1.0}, {"repetition_penalty": 1.2})
FILTERS = ({}, {}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.02})
RUNS = (  # policy, drafters, requests at once
    ("fixed:6", "prompt-lookup,recycling", 32),
    ("goodput", "prompt-lookup,recycling", 13),
    ("fixed:10", "lab.drafters.ngram_tree:NgramTree", 8),
    ("fixed:6", "prompt-lookup,recycling", 1),
    ("fixed:6", "head", 16),
)


def count_differing(
    texts: int, max_tokens: int, concurrency: int, model: str, device: str, dtype: str
) -> int:
    """Print a table by run. Arguments are the options of `reliability.py seeds`."""
    options = {"model": model, "device": device, "dtype": dtype}
    plain = _generate(range(texts), max_tokens, max_batch=concurrency, policy="off", **options)
    table, num_differ = (
        Table("policy", "drafters", "requests at once", "texts", "drafts accepted", "differ"),
        0,
    )
    for number, (policy, drafters, at_once) in enumerate(RUNS):
        if drafters == "head" and model != EngineConfig.model:
            continue
        own = range(number, texts, len(RUNS))
        run = {"policy": policy, "drafters": parse_drafters(drafters), "max_batch": at_once}
        found = _generate(own, max_tokens, **run, **options)
        differ = [text for text in own if found.tokens[text] != plain.tokens[text]]
        for text in differ:
            pairs = enumerate(zip(found.tokens[text], plain.tokens[text], strict=True))
            print(
                f"text {text} parts at output token "
                f"{next(place for place, (a, b) in pairs if a != b)}"
            )
        num_differ += len(differ)
        table.add_row(
            policy, drafters, *map(str, (at_once, len(own), found.num_accepted, len(differ)))
        )
    Console().print(table)
    return num_differ


@dataclass(frozen=True)
class _Texts:
    """tokens: of the texts by number. num_accepted: draft tokens in them."""

    tokens: dict[int, list[int]]
    num_accepted: int


def _generate(numbers: range, max_tokens: int, **options) -> _Texts:
    config = EngineConfig(max_model_len=256, max_queue=max(1024, len(numbers)), **options)
    engine = build_engine(config)
    requests = {}
    for number in numbers:
        kinds = PROMPTS[number % 4], PENALTIES[number // 4 % 4], FILTERS[number // 16 % 5]
        params = SamplingParams(
            max_tokens=max_tokens, temperature=0.8, ignore_eos=True, **kinds[1], **kinds[2]
        )
        token_ids = np.array(engine.tokenizer(kinds[0])["input_ids"], dtype=np.int32)
        requests[number] = Request(number, token_ids, params, seed=number)
        engine.core.add_request(requests[number])
    num_accepted = 0
    while engine.core.has_work:
        num_accepted += engine.core.step(time.monotonic()).num_accepted_tokens
    return _Texts(
        {number: request.output_token_ids.tolist() for number, request in requests.items()},
        num_accepted,
    )
