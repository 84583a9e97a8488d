"""What `smartspec export vllm` prints is read by vLLM's own parser as it was meant."""

import pytest
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from smartspec.observation.length_tables import vllm_config, with_lengths
from smartspec.sim.length_table import length_table
from smartspec.sim.scenario import Scenario


@pytest.mark.parametrize("lengths", [None, (1, 3, 5)])
def test_vllm_reads_the_table(lengths):
    table = length_table(Scenario(batch=1, drafter="lookup", max_batch=100), acceptance=0.4)
    table = table if lengths is None else with_lengths(table, lengths)
    config = vllm_config(table)
    lookup = build_dynamic_sd_schedule_lookup(
        config["num_speculative_tokens_per_batch_size"], 100, config["num_speculative_tokens"]
    )
    assert lookup[1:] == table
    assert lengths is None or set(lookup[1:]) - {0} == set(lengths)
