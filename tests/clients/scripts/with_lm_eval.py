"""lm-eval's `local-completions`: log-likelihoods of continuations, of a whole text, and
generation."""

import os
import sys

import requests
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

model, tokenizer = sys.argv[1:]
url = f"{os.environ['SMARTSPEC_URL']}/v1/completions"
pairs = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " a large and old town"),
    ("The capital of France is", " 🎉巴黎"),
    ("One, two, three, four,", " five, six, seven"),
    ("", "Once upon a time"),
]


def expected(lm: LocalCompletionsAPI, context: str, continuation: str) -> float:
    """The same of the answer's prompt_logprobs."""
    context_ids = lm.tok_encode(context) or [lm.prefix_token_id]
    token_ids = context_ids + lm.tok_encode(continuation)
    if context:
        token_ids = lm.tok_encode(context + continuation)
    body = {"model": model, "prompt": token_ids, "prompt_logprobs": 0, "max_tokens": 0}
    entries = requests.post(url, json=body, timeout=600).json()["choices"][0]["prompt_logprobs"]
    after = list(zip(entries, token_ids, strict=True))[len(context_ids) :]
    return sum(entry[str(token_id)]["logprob"] for entry, token_id in after)


for tokenized, batch_size, num_concurrent in ((True, 1, 1), (True, 2, 4), (False, 2, 1)):
    lm = LocalCompletionsAPI(
        base_url=url,
        model=model,
        tokenizer=tokenizer,
        tokenizer_backend="huggingface",
        tokenized_requests=tokenized,
        batch_size=batch_size,
        num_concurrent=num_concurrent,
    )
    instances = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    for pair, (loglikelihood, is_greedy) in zip(pairs, lm.loglikelihood(instances), strict=True):
        assert abs(loglikelihood - expected(lm, *pair)) < 1e-3, (pair, loglikelihood)
        assert is_greedy == (pair[1] in (" Paris", " five, six, seven")), pair

(whole,) = lm.loglikelihood_rolling(
    [Instance("loglikelihood_rolling", {}, ("Once upon a time",), 0)]
)
assert abs(whole - expected(lm, "", "Once upon a time")) < 1e-3
options = {"until": ["\n"], "max_gen_toks": 8, "temperature": 0}
(text,) = lm.generate_until(
    [Instance("generate_until", {}, ("The capital of France is", options), 0)]
)
assert text.strip()
print("ok")
