"""The real model with every drafter and policy: greedy output is that of plain decoding, token for
token.

One loaded model serves all cases and none measures a profile, so that they take seconds. The draft
models are the model itself, whose drafts are all accepted, and its own first layers, whose drafts
mostly are not.
"""

import copy
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from default_model import default_tokenizer, load_once, stock_model
from real_prompts import PROMPTS, chats
from tiny_engine import begin, finish, requests_of
from tiny_engine import outputs as outputs_of
from transformers import AutoModelForCausalLM

from smartspec.control.fixed import Fixed
from smartspec.control.planning import plan_of_lengths
from smartspec.control.records import Plan
from smartspec.core.batch import StepOutput
from smartspec.core.prefill_room import SCORED_CHUNK
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.shipped.head import SHIPPED
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime import build
from smartspec.engine.runtime.config import EngineConfig
from smartspec.server.structured.fields import StructuredOutputs
from smartspec.server.structured.grammars import GrammarCompiler
from smartspec.server.structured.token_grammar import TokenGrammar

NUM_SHALLOW_LAYERS = 4
MAX_TOKENS = 20
SHALLOW = "shallow"
HEAD = SHIPPED  # the one that comes with the model
LOOKUP, RECYCLING, STORE = "prompt-lookup", "recycling", "datastore"


pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of the model's first layers; made for slow tests alone, as it takes long."""
    folder, stock = tmp_path_factory.mktemp("shallow"), stock_model()
    config = copy.deepcopy(stock.config)
    config.num_hidden_layers, config.layer_types = NUM_SHALLOW_LAYERS, None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict({name: stock.state_dict()[name] for name in model.state_dict()})
    model.save_pretrained(folder)
    default_tokenizer().save_pretrained(folder)
    return str(folder)


def engine_of(policy: str, drafters: tuple[str, ...] | None, **options) -> build.Engine:
    options |= {"max_batch": 3, "max_model_len": 512, "strict": True, "device": "cpu"}
    return build.build_engine(EngineConfig(policy=policy, drafters=drafters, **options))


def generate(
    policy: str,
    drafters: tuple[str, ...],
    stop_token_ids: tuple[int, ...] = (),
    grammar: TokenGrammar | None = None,
    **options,
) -> tuple[list[list[int]], list[StepOutput]]:
    """Tokens of the answers to some prompts, three at a time, and what each step did."""
    engine = engine_of(policy, drafters)
    requests = requests_of(chats(PROMPTS[1::2]), **{"max_tokens": MAX_TOKENS} | options)
    for request in requests:
        request.stop_token_ids = frozenset(stop_token_ids)
        request.grammar = grammar and grammar.copy()
    steps = finish(engine.core, requests)
    return outputs_of(requests), steps


@cache
def plainly(**options) -> list[list[int]]:
    """The answers of plain decoding."""
    return generate("off", (), **options)[0]


@pytest.fixture(scope="module")
def plain(loaded_once) -> list[list[int]]:
    return plainly(temperature=0.0)


@pytest.mark.parametrize("policy", ["fixed:4", "goodput"])
@pytest.mark.parametrize(
    "drafters",
    [
        (LOOKUP, RECYCLING, STORE),
        (HEAD,),
        pytest.param((DEFAULT_MODEL,), marks=pytest.mark.slow),
        pytest.param((SHALLOW,), marks=pytest.mark.slow),
        pytest.param((LOOKUP, RECYCLING, SHALLOW), marks=pytest.mark.slow),
    ],
    ids="+".join,
)
def test_greedy_output_is_that_of_plain_decoding(request, plain, policy, drafters):
    names = [request.getfixturevalue(SHALLOW) if name == SHALLOW else name for name in drafters]
    outputs, steps = generate(policy, tuple(names))
    assert outputs == plain
    assert max(len(tokens) for tokens in outputs) == MAX_TOKENS
    num_verified = sum(step.num_verified_tokens for step in steps)
    num_accepted = sum(step.num_accepted_tokens for step in steps)
    if policy != "goodput":  # which may decide for no drafts at all, depending on the machine
        assert num_verified > 0
        assert num_accepted == num_verified or drafters != (DEFAULT_MODEL,)


def any_shape(max_width: int, pause: float = 0.0) -> Callable[..., Plan]:
    """In place of Fixed.plan: trees, or chains of a width of 1, of another shape in every step, and
    steps without drafts."""
    random = np.random.default_rng(0)

    def plan(self, view, estimates) -> Plan:
        is_planned = random.random() >= pause
        plan = plan_of_lengths(view, estimates, random.integers(0, 11, view.num_rows) * is_planned)
        depths = random.integers(1, 5, view.num_rows)
        return replace(
            plan, depths=depths, width=int(random.integers(min(2, max_width), max_width + 1))
        )

    return plan


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_output_with_trees_of_a_head_is_that_of_plain_decoding(monkeypatch, temperature):
    expected = plainly(temperature=temperature)
    monkeypatch.setattr(Fixed, "plan", any_shape(max_width=5))
    trees = []
    monkeypatch.setattr(
        Fixed, "learn", lambda self, plan, outcome: trees.append(outcome.parents is not None)
    )
    outputs, steps = generate("fixed:10", (HEAD,), temperature=temperature)
    assert outputs == expected
    assert sum(trees) > len(trees) // 2 > 5
    assert sum(step.num_verified_tokens for step in steps) > 40


@pytest.mark.parametrize("max_width", [1, 5])
def test_output_with_a_head_lives_through_preemption_shared_prefixes_and_pauses(
    plain, monkeypatch, max_width
):
    monkeypatch.setattr(Fixed, "plan", any_shape(max_width, pause=0.4))
    monkeypatch.setattr(
        "smartspec.control.planning.model_free_first",
        lambda view, *rest: np.zeros(view.num_rows, int),
    )
    engine = engine_of("fixed:10", (HEAD,), kv_tokens=512)
    requests = requests_of(chats(PROMPTS[1::2]) * 2, max_tokens=MAX_TOKENS)
    steps = begin(engine.core, requests, 8)
    engine.core.scheduler.start_over()  # all that run are preempted, and no prefix is left
    steps += finish(engine.core)
    assert outputs_of(requests) == plain * 2
    assert any(request.num_preemptions for request in requests) and any(
        r.num_cached_tokens for r in requests
    )
    assert sum(step.num_verified_tokens for step in steps) > 40


def common_tokens(outputs: list[list[int]], num: int) -> list[int]:
    return [
        token
        for token, _ in Counter(token for tokens in outputs for token in tokens).most_common(num)
    ]


@pytest.mark.parametrize("drafters", [(LOOKUP, RECYCLING), (DEFAULT_MODEL,)], ids="+".join)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rules_on_single_tokens_hold_at_every_draft_position(plain, drafters, temperature):
    """Each rule is aimed at what plain decoding says, so that drafts run into all of them."""
    common = common_tokens(plain, 12)
    rules = {
        "logit_bias": ((common[0], -100.0), (common[1], 4.0)),
        "bad_words_token_ids": (
            (common[2],),
            *((a, b) for a, b in zip(plain[0], plain[0][1:], strict=False)),
        ),
        "min_tokens": 10,
        "stop_token_ids": (common[1],),
        "temperature": temperature,
    }
    expected = plainly(**rules)
    outputs, steps = generate("fixed:4", drafters, **rules)
    assert sum(step.num_verified_tokens for step in steps) > 0
    # a draft model that samples keeps the distribution only
    if temperature == 0.0 or drafters != (DEFAULT_MODEL,):
        assert outputs == expected != plain
    for tokens in outputs:
        assert len(tokens) >= 10 and common[1] not in tokens[:9]
        assert not {common[0], common[2]} & set(tokens)
        pairs = set(itertools.pairwise(tokens))
        assert not pairs & set(rules["bad_words_token_ids"])


@pytest.mark.parametrize(
    ("drafters", "num_allowed"),  # of one, a draft is right on every processor
    [((LOOKUP, RECYCLING), 12), ((LOOKUP,), 1), ((RECYCLING,), 1), ((DEFAULT_MODEL,), 12)],
)
def test_allowed_tokens_are_the_only_ones(plain, drafters, num_allowed):
    allowed = tuple(common_tokens(plain, num_allowed))
    expected = plainly(allowed_token_ids=allowed)
    outputs, steps = generate("fixed:4", drafters, allowed_token_ids=allowed)
    assert outputs == expected
    assert {token for tokens in outputs for token in tokens} <= set(allowed)
    if num_allowed == 1 and drafters != (DEFAULT_MODEL,):  # which drafts other tokens, too
        assert sum(step.num_accepted_tokens for step in steps) > 0


SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "maxLength": 40},
        "items": {
            "type": "array",
            "maxItems": 4,
            "items": {"type": "integer", "minimum": 0, "maximum": 999},
        },
    },
    "required": ["answer", "items"],
    "additionalProperties": False,
}
FORCING = (
    r"According to the atlas, the capital of that country is [A-Z][a-z]{2,5}, on the river "
    r"[A-Z][a-z]{2,5}\."
)
LINES = r"(- [a-z]{2,12} is [0-9]{1,3}\n){2,3}"
WANTED = {"json": {"json": SCHEMA}, "lines": {"regex": LINES}, "forcing": {"regex": FORCING}}


@pytest.fixture(scope="module")
def grammars(loaded_once) -> dict[str, TokenGrammar]:
    loaded = load_once(DEFAULT_MODEL, dtype="auto", device="cpu")
    compiler = GrammarCompiler(loaded.tokenizer, loaded.vocab_size, loaded.eos_token_ids)
    return {
        name: compiler.compile(StructuredOutputs(**wanted).definition())
        for name, wanted in WANTED.items()
    }


def follows(wanted: dict, text: str, is_whole: bool) -> bool:
    if "regex" in wanted:
        return re.fullmatch(wanted["regex"], text) is not None or not is_whole
    return not is_whole or json.loads(text).keys() == SCHEMA["properties"].keys()


@pytest.mark.parametrize(
    ("name", "drafters", "temperature"),
    [
        ("json", (LOOKUP, RECYCLING), 0.0),
        ("json", (RECYCLING,), 0.9),
        ("json", (DEFAULT_MODEL,), 0.9),
        ("lines", (LOOKUP, RECYCLING), 0.9),
        ("lines", (HEAD,), 0.9),
        ("forcing", (LOOKUP,), 0.0),
        ("forcing", (RECYCLING, STORE), 0.9),
    ],
)
def test_structured_output_is_that_of_plain_decoding(grammars, name, drafters, temperature):
    tokenizer = load_once(DEFAULT_MODEL, dtype="auto", device="cpu").tokenizer
    options = {
        "temperature": temperature,
        "grammar": grammars[name],
        "max_tokens": 72,
        "stop_token_ids": (2,),
    }
    expected = plainly(**options)
    outputs, steps = generate("fixed:4", drafters, **options)
    # a draft model that samples keeps the distribution only
    if temperature == 0.0 or drafters != (DEFAULT_MODEL,):
        assert outputs == expected
    for tokens in outputs:
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        assert follows(WANTED[name], text, is_whole=tokens[-1] == 2)
    assert any(tokens[-1] == 2 for tokens in outputs)
    num_verified = sum(step.num_verified_tokens for step in steps)
    num_accepted = sum(step.num_accepted_tokens for step in steps)
    assert num_verified > 0
    if name == "forcing":  # what a grammar forces is drafted, and nearly always right
        assert num_accepted > 4 * len(outputs)
    if drafters == (DEFAULT_MODEL,):  # it drafts under the same grammar, with the same distribution
        assert num_accepted >= num_verified - 4 * len(outputs)


def test_prompts_are_scored_in_chunks_beside_others_and_nothing_else_changes(plain):
    """Each as one pass over the whole prompt has it, also where it was preempted, and where its
    beginning is cached."""
    engine = engine_of("fixed:4", None, kv_tokens=640)
    prompts = chats([*PROMPTS[1::2], PROMPTS[1]])
    requests = requests_of(prompts, max_tokens=MAX_TOKENS, prompt_logprobs=3)
    requests[1::2] = requests_of(prompts, max_tokens=MAX_TOKENS)[1::2]
    begin(engine.core, requests, 2)
    engine.core.scheduler.start_over()
    finish(engine.core)
    assert outputs_of(requests) == [*plain, plain[0]]
    runner = ModelRunner(engine.loaded, num_slots=1, max_len=512)
    for request in requests:
        tokens = request.tokens[: request.num_prompt_tokens]
        prompt = torch.from_numpy(tokens.astype(np.int64))
        if request.params.prompt_logprobs is None:
            assert not request.prompt_logprobs
            continue
        whole = [Segment(0, 0, tokens.astype(np.int32), len(tokens))]
        logprobs = runner.forward(whole)[:-1].float().log_softmax(dim=-1)
        found = request.prompt_logprobs
        chosen = logprobs.gather(1, prompt[1:, None])
        np.testing.assert_allclose([entry.logprob for entry in found], chosen[:, 0], atol=1e-4)
        np.testing.assert_allclose(
            [entry.top_logprobs for entry in found], logprobs.topk(3).values, atol=1e-4
        )
        ranks = (logprobs > chosen).sum(dim=1) + 1
        is_top = np.array([entry.rank == 1 for entry in found])
        assert (is_top == (ranks == 1).numpy()).mean() > 0.98
        assert all(
            entry.rank == 1
            for entry, token in zip(found, prompt[1:], strict=True)
            if entry.top_token_ids[0] == token
        )
    assert max(request.num_prompt_tokens for request in requests) > SCORED_CHUNK
