"""Drafts that lead where a grammar is too complex: they end there, and nothing else is changed."""

import itertools
import re

import numpy as np
import pytest
import torch
from fake_server import compiled

from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.core.batch import Draft
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.engine.sampling.verification import verify
from smartspec.server.structured.fields import StructuredOutputs
from smartspec.server.structured.token_grammar import MAX_BUILDS

# After "x" the lexer has to remember which of the last 100 letters were an "a": a few tokens of
# that exhaust its fuel.
REGEX = r"ok(( fine)*|x([a-z ]*a[a-z ]{100}b)+)"


class Table:
    """A target that says one token after each last token."""

    taps, features, max_len = (), [], 4096

    def __init__(self, vocab_size, next_of):
        self.vocab_size, self.next_of = vocab_size, next_of

    def apply(self, ops):
        pass

    def keep_path(self, *path):
        pass

    def forward(self, segments):
        last = np.concatenate([s.token_ids[len(s.token_ids) - s.num_logits :] for s in segments])
        logits = torch.zeros(len(last), self.vocab_size)
        for row, token in enumerate(last.tolist()):
            logits[row, self.next_of.get(token, 0)] = 20.0
        return logits


@pytest.fixture
def ids(tokenizer):
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture
def grammar_of_regex(tokenizer):
    return compiled(tokenizer, StructuredOutputs(regex=REGEX))


@pytest.fixture
def too_far(ids):
    return ids("x" + "aab" * 20)


def test_looking_too_far_changes_nothing(grammar_of_regex, ids, too_far):
    grammar, other = grammar_of_regex.copy(), grammar_of_regex.copy()
    grammar.accept(ids("ok"))
    before, after = grammar.allowed().copy(), grammar.allowed(ids(" fine")).copy()
    assert any(not grammar.allowed(too_far[:end]).any() for end in range(1, len(too_far))), (
        "the limit is met"
    )
    assert (grammar.allowed() == before).all() and (grammar.allowed(ids(" fine")) == after).all()
    assert grammar.num_allowed(ids(" fine fine")) == 2
    later = grammar_of_regex.copy()
    for one in (other, later):
        assert one.allowed()[ids("ok")[0]] and (one.allowed(ids("ok")) == before).all()
        one.accept(ids("ok fine"))
        assert (one.allowed() == after).all()


def test_after_some_errors_there_is_no_looking_ahead_and_the_output_goes_on(
    grammar_of_regex, ids, too_far
):
    grammar = grammar_of_regex.copy()
    grammar.accept(ids("ok"))
    for _ in range(MAX_BUILDS):
        for end in range(8, len(too_far)):
            if not grammar.allowed(too_far[:end]).any():
                break
    assert grammar.num_allowed(ids(" fine")) == 0 and not grammar.allowed(ids(" fine")).any()
    assert grammar.forced() == []
    grammar.accept(ids(" fine"))
    assert grammar.allowed()[ids(" fine")[0]]


def run(tokenizer, grammar, next_of, prompt, policy):
    core = EngineCore(
        Scheduler(
            BlockManager(400, 16, 2),
            max_batched_tokens=512,
            max_model_len=1024,
            max_draft_tokens=16,
        ),
        LiveExecutor(
            Table(len(tokenizer), next_of), (drafter := PromptLookupDrafter(max_draft_tokens=16),)
        ),
        Controller(
            policy,
            16,
            LatencyModel(CostCurve.linear(0.01, 1e-4)),
            drafters=(drafter.spec,),
            strict=True,
        ),
    )
    params = SamplingParams(max_tokens=40, temperature=0.0)
    eos = frozenset([tokenizer.eos_token_id])
    request = Request(0, prompt, params, seed=0, stop_token_ids=eos, grammar=grammar.copy())
    core.add_request(request)
    num_verified = sum(
        core.step(float(now)).num_verified_tokens for now in range(1, 60) if core.has_work
    )
    return (
        tokenizer.decode(request.output_token_ids.tolist(), skip_special_tokens=True),
        request,
        num_verified,
    )


def test_the_text_is_that_of_plain_decoding(tokenizer, grammar_of_regex, ids, too_far):
    ok, fine = ids("ok")[0], ids(" fine")[0]
    (colon,) = ids(":")
    next_of = {colon: ok, ok: fine, fine: tokenizer.eos_token_id}
    prompt = [ok, *too_far, ids("\n")[0], colon]
    for policy in ("off", "fixed:16"):
        text, request, num_verified = run(tokenizer, grammar_of_regex, next_of, prompt, policy)
        assert text == "ok fine" and request.error is None and re.fullmatch(REGEX, text)
        assert (num_verified > 0) == (policy != "off"), "something was drafted"


def test_where_plain_decoding_meets_the_limit_so_does_decoding_with_drafts(
    tokenizer, grammar_of_regex, ids, too_far
):
    """At the same token, and it is the request that ends."""
    ok = ids("ok")[0]
    said = [ok, *too_far]
    (colon,) = ids(":")
    texts = {}
    for policy in ("off", "fixed:16"):
        grammar = grammar_of_regex.copy()
        next_of = {colon: ok, ok: said[1]} | dict(itertools.pairwise(said[1:]))
        texts[policy], request, _ = run(
            tokenizer, grammar, next_of, [*said, ids("\n")[0], colon], policy
        )
        assert "too complex" in request.error and request.error_is_callers
    assert texts["off"] == texts["fixed:16"] != ""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_is_held_to_the_grammar_on_every_branch(
    tokenizer, grammar_of_regex, ids, too_far, temperature
):
    ok, fine, the = ids("ok")[0], ids(" fine")[0], ids(" the")[0]
    grammar = grammar_of_regex.copy()
    grammar.accept([ok])
    request = Request(0, [1, ok], SamplingParams(temperature=temperature), seed=0, grammar=grammar)
    branch, n = too_far[:16], 16
    tree = Draft(np.array([*branch, fine], np.int32), np.array([*range(-1, n - 1), -1], np.int32))
    logits = torch.zeros(n + 2, len(tokenizer))
    logits[0, fine] = logits[n + 1, the] = 40.0
    verified = verify(logits, [request], [tree])[0]
    emitted = verified.emitted_token_ids
    assert verified.error is None and emitted[0] == fine and the not in emitted
    assert len(emitted) == verified.num_accepted + 1
    fresh = compiled(tokenizer, StructuredOutputs(regex=REGEX))
    assert fresh.num_allowed([ok, *emitted]) == 1 + len(emitted)
