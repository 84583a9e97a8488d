"""Hosts of the target: each has the crossing that its paper is about."""

from dataclasses import replace

import numpy as np
import pytest

from lab.worlds import HOSTS
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate
from smartspec.sim.world.hardware import Roofline, kv_token_capacity, roofline
from smartspec.sim.world.hosts import on_host

LENGTHS = np.arange(9)


def host(
    name: str, model: str = "llama-3.1-8b", devices: int = 1, accelerator: str = "h100"
) -> Roofline:
    return on_host(name, roofline(accelerator, model, devices))


def decode_seconds(target: Roofline, tokens: float, rows: int = 1) -> float:
    return float(target.seconds(tokens, 512 * rows + tokens, rows))


def prefill_seconds(target: Roofline, tokens: float) -> float:
    return float(target.seconds(tokens, tokens, 1, None, 1))


def goodputs(target: Roofline, rows: int) -> np.ndarray:
    """Tokens per second by length of free drafts that are accepted with 0.7."""
    fed = rows * (1 + LENGTHS)
    return rows * np.cumsum(0.7**LENGTHS) / target.seconds(fed, 512 * rows + fed, rows)


def best_length(target: Roofline, rows: int) -> int:
    return int(goodputs(target, rows).argmax())


def test_papi_is_the_faster_side_of_each_pass_and_they_cross():
    gpu, memory, either = host("plain"), host("memory-side"), host("papi")
    assert decode_seconds(memory, 1) < 0.6 * decode_seconds(gpu, 1)
    assert decode_seconds(gpu, 256, 256) < 0.5 * decode_seconds(memory, 256, 256)
    for rows in (1, 4, 16, 64, 256):
        assert decode_seconds(either, rows, rows) <= min(
            decode_seconds(side, rows, rows) for side in (gpu, memory)
        )


def test_papi_has_short_drafts_until_the_pass_goes_to_the_gpu():
    """Units in memory have no arithmetic to spare; the GPU has, and a longer draft can be what
    makes it worth it."""
    lengths = [best_length(host("papi"), rows) for rows in (2, 4, 8)]
    assert lengths[1] < lengths[0] < lengths[2]


def test_length_and_side_are_chosen_together():
    """Each side with its best length is the better one somewhere; the choice is never worse than
    either."""
    speeds = {
        name: np.array([goodputs(host(name), rows).max() for rows in (1, 4, 16, 64)])
        for name in ("plain", "memory-side", "papi")
    }
    assert (
        speeds["memory-side"][0] > speeds["plain"][0]
        and speeds["memory-side"][-1] < speeds["plain"][-1]
    )
    assert (speeds["papi"] >= np.maximum(speeds["plain"], speeds["memory-side"])).all()


def test_prefetch_hides_the_experts_of_a_long_prompt_and_not_those_of_a_token():
    plain, moved, fetched = (
        host(name, "qwen-3-30b-a3b")
        for name in ("plain", "offloaded-experts", "prefetched-experts")
    )
    assert (
        prefill_seconds(fetched, 32768)
        < 1.01 * prefill_seconds(plain, 32768)
        < prefill_seconds(moved, 32768)
    )
    assert (
        1.3 * decode_seconds(plain, 1) < decode_seconds(fetched, 1) < 0.8 * decode_seconds(moved, 1)
    )


def test_with_experts_on_the_host_one_request_has_no_drafts_and_many_have_longer_ones_than_without():  # noqa: E501
    plain, fetched = host("plain", "qwen-3-30b-a3b"), host("prefetched-experts", "qwen-3-30b-a3b")
    assert best_length(fetched, 1) == 0 < best_length(plain, 1)
    assert best_length(fetched, 256) > best_length(plain, 256)


def test_all_experts_cached_is_a_plain_mixture_with_all_its_memory():
    plain, fetched = host("plain", "qwen-3-30b-a3b"), host("prefetched-experts", "qwen-3-30b-a3b")
    assert decode_seconds(replace(fetched, cached=1.0), 5) == decode_seconds(plain, 5)
    assert kv_token_capacity(fetched) > 1.5 * kv_token_capacity(plain)


def test_predicted_routing_pays_for_many_tokens_and_not_for_few():
    name, devices = "mixtral-8x7b", 8
    spread, predicted = (
        host(h, name, devices, "l40s") for h in ("expert-parallel", "speculative-moe")
    )
    assert decode_seconds(predicted, 1) > 0.999 * decode_seconds(spread, 1)
    assert prefill_seconds(predicted, 8192) < 0.97 * prefill_seconds(spread, 8192)


def test_loongserve_gives_prefill_all_devices_and_decoding_one():
    elastic = host("loongserve", devices=8)
    one, all_of_them = (replace(elastic, degree=degree) for degree in (1, 8))
    assert decode_seconds(elastic, 1) == decode_seconds(one, 1) < decode_seconds(all_of_them, 1)
    assert (
        prefill_seconds(elastic, 32768)
        == prefill_seconds(all_of_them, 32768)
        < prefill_seconds(one, 32768) / 5
    )


def test_prefill_on_loongserve_is_quadratic_in_the_prompt_as_its_authors_model_it():
    """seconds = A + B tokens + C tokens^2: within 5 % on A100s, as theirs, where a line is not."""
    lengths = np.array([1024, 2048, 4096, 8192, 16384, 32768.0])
    seconds = host("loongserve", devices=8, accelerator="a100-80g").seconds(
        lengths, lengths, 1, None, 1
    )
    errors = []
    for terms in (3, 2):
        columns = np.stack([lengths**power for power in range(terms)], axis=1) / seconds[:, None]
        fit = np.linalg.lstsq(columns, np.ones(len(lengths)), rcond=None)[0]
        errors.append(np.abs(columns @ fit - 1).max())
    assert errors[0] < 0.05 < errors[1]


def test_blocks_are_speculated_for_one_token_and_not_for_many():
    chain, speculated = host("block-chain"), host("blockllm")
    assert decode_seconds(speculated, 1) < 0.95 * decode_seconds(chain, 1)
    assert decode_seconds(speculated, 16) == decode_seconds(chain, 16)
    never_right = replace(speculated, right=0.0)
    assert decode_seconds(never_right, 1) == decode_seconds(chain, 1)


def test_padding_to_captured_sizes_makes_a_staircase_that_token_scheduling_does_not_have():
    """XY-Serve computes any number of tokens; engines with few captured graphs pad."""
    free, padded = roofline("h100", "llama-3.1-8b"), roofline("h100", "llama-3.1-8b", 1, (128, 256))
    step, stair = (
        decode_seconds(target, 129, 128) - decode_seconds(target, 128, 128)
        for target in (free, padded)
    )
    assert stair > 20 * step > 0


@pytest.mark.parametrize("name", HOSTS)
def test_a_policy_plays_on_every_host(name):
    machine = {"model": "mixtral-8x7b", "tensor_parallel": 4} if name != "loongserve" else {}
    load = {"batch": 2, "num_requests": 3, "output_tokens": 10}
    outcome = simulate(Scenario(policy="goodput", host=name, drafter="lookup", **machine, **load))
    assert len(outcome.run.records) == 3


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"host": "gone"}, "unknown host 'gone': use one of plain, memory-side, papi"),
        ({"host": "prefetched-experts"}, "the model has none"),
        ({"host": "speculative-moe", "model": "mixtral-8x7b"}, "tensor_parallel > 1"),
        ({"host": "papi", "hardware": "curves.json"}, "is measured: leave it out"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        simulate(Scenario(batch=1, num_requests=1, drafter="lookup", **wrong))
