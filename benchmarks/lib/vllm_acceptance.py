"""Runs in vLLM's environment: drafts of an EAGLE-3 head in stock vLLM, counted. See vllm_head.py,
which calls it.

    python vllm_acceptance.py JOB RESULT

JOB names a JSON file with model, head, num_draft_tokens, max_tokens and prompts (token ids); RESULT
is written: answers (token ids), drafts, and how many of them had at least 1, 2, ... tokens
accepted.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def main(job_path: Path, result_path: Path) -> None:
    from vllm import LLM, SamplingParams

    job = json.loads(job_path.read_text())
    head = {
        "method": "eagle3",
        "model": job["head"],
        "num_speculative_tokens": job["num_draft_tokens"],
    }
    llm = LLM(
        job["model"],
        speculative_config=head,
        max_num_seqs=4,
        max_model_len=2048,
        dtype="float32",
        enforce_eager=True,
        disable_log_stats=False,
    )
    params = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"])
    prompts = [{"prompt_token_ids": token_ids} for token_ids in job["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    found = {metric.name.removeprefix("vllm:spec_decode_"): metric for metric in llm.get_metrics()}
    result = {
        "answers": [list(output.outputs[0].token_ids) for output in outputs],
        "num_drafts": int(found["num_drafts"].value),
        "accepted_by_position": [
            int(value) for value in found["num_accepted_tokens_per_pos"].values
        ],
    }
    result_path.write_text(json.dumps(result))


if __name__ == "__main__":  # vLLM starts processes that import this file
    main(Path(sys.argv[1]), Path(sys.argv[2]))
