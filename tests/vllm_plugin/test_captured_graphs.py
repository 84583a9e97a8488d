"""Where vLLM has captured graphs of lengths that all requests share, all requests of a step share
one."""

import logging
from itertools import chain

import pytest
from toy_engine import FULL_GRAPHS, make_config, run

TABLE = [[1, 2, 4], [3, 6, 2], [7, 8, 0]]


@pytest.mark.parametrize(
    ("method", "is_async", "table", "tiers"),
    [
        *(
            ("draft_model", is_async, table, tiers)
            for is_async in (False, True)
            # none; one; a length that is longer than configured
            for table, tiers in ((None, {4}), (TABLE, {2, 4}), ([[1, 8, 9]], {4}))
        ),
        # drafts of one length without passes
        ("ngram_gpu", False, TABLE, {2, 4}),
        ("medusa", False, TABLE, {2, 4}),
    ],
)
def test_where_graphs_are_captured_all_requests_of_a_step_share_a_length(
    method, is_async, table, tiers, tmp_path, caplog
):
    graphs = {"cudagraph_mode": FULL_GRAPHS, "num_speculative_tokens_per_batch_size": table}
    with caplog.at_level(logging.INFO, "vllm.smartspec"):
        engine = run(make_config(tmp_path, method=method, is_async=is_async, **graphs))
    assert f"policy uniform:{','.join(map(str, sorted(tiers)))}" in caplog.text
    steps = list(zip(engine.verified_lengths, engine.num_decoding, strict=True))
    assert set(chain.from_iterable(engine.verified_lengths)) == tiers
    ragged = [step for step, rows in steps if step and (len(set(step)) > 1 or len(step) < rows)]
    # A request that a step left out keeps the drafts of an older length for one step: they cannot
    # be made longer.
    assert len(ragged) <= 1


@pytest.mark.parametrize("changes", [{"method": "ngram"}, {"settings": {"policy": "fixed:3"}}])
def test_other_policies_and_model_free_drafts_are_not_bound_to_graphs(changes, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "vllm.smartspec"):
        run(
            make_config(
                tmp_path, cudagraph_mode=FULL_GRAPHS, **{"method": "draft_model"} | changes
            ),
            num_requests=1,
        )
    assert "uniform" not in caplog.text


def test_n_grams_of_the_v2_runner_are_bound_to_graphs_and_can_be_left_out(tmp_path, caplog):
    """There the GPU drafts the configured length for all requests, found or not, and the scheduler
    cuts it."""
    graphs = {"cudagraph_mode": FULL_GRAPHS, "num_speculative_tokens_per_batch_size": TABLE}
    config = make_config(tmp_path, method="ngram", is_async=True, **graphs)
    config.use_v2_model_runner = True
    with caplog.at_level(logging.INFO, "vllm.smartspec"):
        engine = run(config, acceptance=0.02, max_tokens=300)
    assert "policy uniform:2,4" in caplog.text
    decided = [
        lengths
        for lengths, rows in zip(engine.verified_lengths, engine.num_decoding, strict=True)
        if rows
    ]
    assert all(len(set(lengths)) == 1 and lengths[0] in (2, 4) for lengths in decided if lengths)
    while_all_run = decided[80:-50]
    assert sum(map(bool, while_all_run)) <= len(while_all_run) / 20, (
        "drafts that are hardly ever right are left out"
    )
