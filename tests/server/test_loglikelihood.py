"""Log-likelihoods as lm-eval takes them from a server, of the real model, against transformers'.

lm-eval's `local-completions` sends the context and the continuation as one prompt with `echo`,
`logprobs` 1 and `max_tokens` 1, adds up token_logprobs[context length:-1], and takes the
continuation for greedy where each of these is the highest of its top_logprobs.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from default_model import default_tokenizer, stock_model
from fake_server import FakeServer
from real_server import running_model

from smartspec.workload.prompts import shipped_prompts

TOLERANCE = 1e-3
BATCH = 4  # prompts of one call


@dataclass(frozen=True)
class Pair:
    """A context and one of its continuations, as token ids."""

    context: list[int]
    continuation: list[int]

    @property
    def token_ids(self) -> list[int]:
        return self.context + self.continuation


def make_pairs(count: int, max_tokens: int) -> list[Pair]:
    """Contexts of real texts, with their own continuation and that of another text, in turn: as
    multiple choices."""
    tokenizer = default_tokenizer()
    texts = [tokenizer(prompt.text)["input_ids"][:max_tokens] for prompt in shipped_prompts()]
    texts = [ids for ids in texts if len(ids) >= 24]
    random = np.random.default_rng(0)
    pairs = []
    for own, other in zip(texts, texts[1:] + texts[:1], strict=True):
        num_context = int(random.integers(1, len(own) - 8))
        ends = (own[num_context : num_context + 12], other[-int(random.integers(1, 8)) :])
        pairs += [Pair(own[:num_context], end) for end in ends]
    return [pair for pair, _ in zip(itertools.cycle(pairs), range(count), strict=False)]


def as_lm_eval(server: FakeServer, pairs: list[Pair]) -> list[tuple[float, bool]]:
    """Log-likelihood of each continuation, and whether it is the greedy one."""
    prompts = [pair.token_ids for pair in pairs]
    body = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = server.completion(prompt=prompts, **body)
    found = []
    for choice, pair in zip(sorted(answer.choices, key=lambda c: c.index), pairs, strict=True):
        logprobs = choice.logprobs.token_logprobs[len(pair.context) : -1]
        tops = choice.logprobs.top_logprobs[len(pair.context) : -1]
        assert len(logprobs) == len(pair.continuation)
        is_greedy = all(
            logprob == max(top.values()) for logprob, top in zip(logprobs, tops, strict=True)
        )
        found.append((sum(logprobs), is_greedy))
    return found


def reference(pairs: list[Pair]) -> list[tuple[float, float]]:
    """transformers' log-likelihood of each continuation on the dequantised weights; and by how much
    each token leads all others, at least (below 0: it is not greedy)."""
    model = stock_model()
    found = []
    for pair in pairs:
        token_ids = torch.tensor(pair.token_ids)
        with torch.inference_mode():
            logprobs = (
                model(token_ids[None, :-1]).logits[0, len(pair.context) - 1 :].log_softmax(dim=-1)
            )
        own = logprobs.gather(1, token_ids[len(pair.context) :, None])
        others = (
            logprobs.scatter(1, token_ids[len(pair.context) :, None], -torch.inf)
            .max(dim=1, keepdim=True)
            .values
        )
        found.append((own.sum().item(), (own - others).min().item()))
    return found


@pytest.mark.parametrize(
    ("count", "max_tokens"), [(6, 40), pytest.param(200, 160, marks=pytest.mark.slow)]
)
def test_log_likelihoods_are_those_of_transformers(count, max_tokens):
    """Of the default model under forced drafts, activations in fp32 as in transformers."""
    pairs = make_pairs(count, max_tokens)
    batches = [pairs[start : start + BATCH] for start in range(0, count, BATCH)]

    def work(number: int) -> list[tuple[float, bool]]:
        if number % 2:  # others meanwhile, whose prefixes are cached: they generate with drafts
            server.complete(prompt=batches[number][0].token_ids, max_tokens=8, temperature=0)
        return as_lm_eval(server, batches[number])

    with (
        running_model(policy="fixed:4", max_model_len=512, activations="fp32") as server,
        ThreadPoolExecutor(3) as pool,
    ):
        found = [pair for batch in pool.map(work, range(len(batches))) for pair in batch]
    expected = reference(pairs)
    worst = max(abs(own - theirs) for (own, _), (theirs, _) in zip(found, expected, strict=True))
    print(f"{len(pairs)} log-likelihoods, at most {worst:.1e} from transformers'")
    assert worst < TOLERANCE
    for (_, is_greedy), (_, lead) in zip(found, expected, strict=True):
        assert is_greedy == (lead > 0) or abs(lead) < TOLERANCE
    assert any(is_greedy for _, is_greedy in found) or count < 200
