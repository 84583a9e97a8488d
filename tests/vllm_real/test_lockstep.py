"""Two ranks in lockstep, data parallelism of a model with experts: no rank waits for ever, and
answers stay.

In one case the draft model is the model itself, so that draft passes have experts too, and every
rank has to make each of them. In the other, drafts are made without passes."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gathering import write_plugin
from make_experts import make_experts
from openai import OpenAI
from serving import self_draft, server
from test_http import counted, metrics

# no passes
LAST_TOKEN = {
    "method": "custom_class",
    "model": "test_methods.LastToken",
    "num_speculative_tokens": 3,
}


@pytest.mark.parametrize("method", ["last token", "self-draft"])
def test_ranks_that_decide_differently_go_on(method, model, prompts, tmp_path):
    target = make_experts(tmp_path / "model", model)
    speculation = LAST_TOKEN if method == "last token" else self_draft(target)
    words = ["smartspec.vllm_plugin.serve", target, "--cache", str(tmp_path)]
    words += ["--max-model-len", "1024", "--data-parallel-size", "2"]
    words += ["--metrics-seconds", "0", "--policy", "fixed:3"]
    words += ["--speculative-config", json.dumps(speculation)]
    cores = "|".join(str(rank % os.cpu_count()) for rank in range(2))
    path = os.pathsep.join(
        [str(tmp_path), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    write_plugin(tmp_path)
    log = tmp_path / "server.log"
    with server(words, log, VLLM_CPU_OMP_THREADS_BIND=cores, PYTHONPATH=path) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none", timeout=120)

        def answer(number: int, **options) -> str:
            """Of uneven length, so that a rank often runs dummy batches while the other decides."""
            question = {"role": "user", "content": prompts[number][:200]}
            call = {
                "messages": [question],
                "max_tokens": 8 + 7 * number,
                "temperature": 0.0,
                "model": target,
            }
            return (
                client.chat.completions.create(**call, extra_body={"vllm_xargs": options})
                .choices[0]
                .message.content
            )

        with ThreadPoolExecutor(6) as pool:
            without = list(
                pool.map(lambda number: answer(number, smartspec_max_draft_tokens=0), range(12))
            )
            before = metrics(address)
            longest = [1 + number % 3 for number in range(12)]
            assert (
                list(
                    pool.map(lambda n: answer(n, smartspec_max_draft_tokens=longest[n]), range(12))
                )
                == without
            )
        after = counted(address, before["smartspec_verified_tokens_total"])
        assert log.read_text().count("SmartSpec decides draft lengths") == 2
        assert after["smartspec_controller_errors_total"] == 0
