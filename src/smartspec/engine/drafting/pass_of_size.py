"""Passes of a given size, for the profile that is measured when an engine starts."""

from collections.abc import Callable

import numpy as np

from smartspec.core.batch import chain
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.ragged_runner import RaggedRunner
from smartspec.engine.sampling.verification import verify

LONGEST_VERIFICATION = 16  # new tokens per row; a pass with more stands for prefill


def segments_of_size(
    runner: RaggedRunner, num_rows: int, num_new: int, context: int
) -> list[Segment]:
    """num_new tokens of each row after a cache that has been written: memory that never was is one
    page of zeros to a CPU, and reads 4 rows of context in a tenth less time."""
    for slot in range(num_rows):
        runner.cache.fill_with_ones(slot, context)
    token_ids = np.arange(num_new, dtype=np.int32) % runner.loaded.vocab_size
    return [Segment(slot, context, token_ids, num_scored(num_new)) for slot in range(num_rows)]


def verification_pass(
    runner: ModelRunner, num_rows: int, num_new: int, context: int
) -> Callable[[], object]:
    """A pass and what the executor does with its logits."""
    segments = segments_of_size(runner, num_rows, num_new, context)
    params = SamplingParams(temperature=0.0)
    requests = [Request(segment.slot, segment.token_ids, params, seed=0) for segment in segments]
    drafts = [chain(segment.token_ids[1 : segment.num_logits]) for segment in segments]
    return lambda: verify(runner.forward(segments), requests, drafts)


def num_scored(num_new: int) -> int:
    """A prefill chunk wants one row of logits, a verification all of them."""
    return num_new if num_new <= LONGEST_VERIFICATION else 1
