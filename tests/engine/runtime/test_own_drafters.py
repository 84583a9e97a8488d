"""Drafters of a user's own, by module:Class, in the engine on tiny models; and what the simulator
says they do."""

import json
import sys

import numpy as np
import pytest
from tiny_engine import finish, outputs, requests_of
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from smartspec.core.request import Request
from smartspec.engine.runtime import build, passes, profile
from smartspec.engine.runtime.build import Engine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.sim import Scenario, simulate
from smartspec.sim import simulation as sim_simulation

K, MAX_TOKENS = 4, 40
MODULE = """
import numpy as np

from smartspec.control import DrafterSpec, DrafterView, FreeTests
from smartspec.core import NO_DRAFT, chain
from smartspec.drafters import ModelFreeDrafter


class LastSeen(ModelFreeDrafter):
    spec = DrafterSpec("last-seen")

    def propose(self, token_ids):
        (places,) = np.nonzero(token_ids[:-1] == token_ids[-1])
        return chain(token_ids[places[-1] + 1 :].tolist()) if len(places) else NO_DRAFT


class Learner(LastSeen):
    '''What followed this token in any request.'''

    def __init__(self, **options):
        super().__init__(**options)
        self.following = {}

    def propose(self, token_ids):
        return chain(self.following.get(int(token_ids[-1]), []))

    def learn(self, token_ids, emitted_token_ids):
        text = [int(token_ids[-1]), *emitted_token_ids]
        self.following |= dict(zip(text[:-1], ([each] for each in text[1:])))


class Again:
    '''Has passes: of the target itself, which is not run; says the newest token again.'''

    taps = (1,)

    def __init__(self, target, repeats=2, *, num_slots, max_draft_tokens):
        self.target, self.repeats = target, repeats
        self.spec = DrafterSpec("again", has_passes=True)
        self.profile_key = ["again", repeats]
        self.profiled, self.num_trimmed = [], 0

    def profile_pass(self, num_rows, num_new, context):
        self.profiled.append((num_rows, num_new, context))
        return lambda: sum(range(100 * num_rows * num_new))

    def begin_step(self, batch):
        self.num_trimmed += len(batch.memory_ops)

    def view(self, batch, is_queried=True):
        return DrafterView(np.full(len(batch.decoding), 8))

    def draft(self, batch, lengths, stop):
        tokens = [int(request.token_ids[-1]) for request in batch.decoding]
        return [chain([token] * min(length, self.repeats)) for token, length in zip(tokens, lengths.tolist())]

    def observe(self, batch, verified, decoding, prefill):
        return FreeTests(*np.zeros((3, len(verified)), dtype=np.int64))


class Unspecified(ModelFreeDrafter):
    def propose(self, token_ids): ...


class Untimed(Again):
    profile_pass = property()


class Tree(LastSeen):
    spec = DrafterSpec("tree")

    def propose(self, token_ids):
        from smartspec.core import Draft

        return Draft(np.zeros(2, dtype=np.int32), np.array([-1, -1], dtype=np.int32), confidence=np.full(2, 0.5))
"""  # noqa: E501


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "drafts_of_mine.py").write_text(MODULE)
    # of profiles alone, not of kernels
    monkeypatch.setattr(profile, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(passes, "MAX_PROFILE_SECONDS", 0.02)
    # a profile of a busy machine is kept where the machine is idle meanwhile, too
    monkeypatch.setattr(profile, "IDLE_PERCENT", 0.0)
    monkeypatch.setattr(build, "load_model", lambda *args, **options: as_loaded(tiny_llama(0)))
    sim_simulation.read_texts.cache_clear()
    yield tmp_path
    sys.modules.pop("drafts_of_mine", None)


def make_engine(drafter: str, policy: str) -> Engine:
    config = EngineConfig(
        drafters=(drafter,),
        policy=policy,
        max_batch=1,
        max_draft_tokens=K,
        kv_tokens=256,
        strict=True,
    )
    return build.build_engine(config)


def serve(engine: Engine, num_requests: int = 5) -> tuple[list[Request], int, int]:
    """Requests one by one, their decoding steps, and accepted tokens of all but each last step."""
    prompts = [np.random.default_rng(n).integers(0, VOCABULARY, 12) for n in range(num_requests)]
    requests, num_steps, num_accepted = requests_of(prompts, max_tokens=MAX_TOKENS), 0, 0
    for request in requests:
        for step in finish(engine.core, [request]):
            num_steps += len(step.verified_lengths)
            num_accepted += step.num_accepted_tokens
    return requests, num_steps, num_accepted


def texts_of(requests: list[Request]) -> str:
    """One line of JSON each."""
    lines = [
        {
            "prompt_token_ids": r.token_ids[: r.num_prompt_tokens].tolist(),
            "output_token_ids": r.output_token_ids.tolist(),
        }
        for r in requests
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    "name", ["drafts_of_mine:LastSeen", "drafts_of_mine:Learner", "recycling", "prompt-lookup"]
)
def test_the_simulator_takes_as_many_steps_as_the_engine(name, folder):
    """The engine is the ground truth: greedy texts, one request at a time, drafts as long as they
    come."""
    requests, num_steps, num_accepted = serve(make_engine(name, f"fixed:{K}"))
    (folder / "texts.jsonl").write_text(texts_of(requests))
    scenario = Scenario(
        policy=f"fixed:{K}", drafter=name, texts="texts.jsonl", batch=1, max_draft_tokens=K
    )
    totals = simulate(scenario).run.totals
    assert totals.num_decode_rows == num_steps
    # at an answer's end
    assert num_accepted > 5 and abs(totals.num_accepted_tokens - num_accepted) <= len(requests)
    plain, *_ = serve(make_engine(name, "off"))
    assert outputs(plain) == outputs(requests)


def test_a_drafter_with_passes_is_made_beside_the_target_timed_and_called(folder):
    engine = make_engine("drafts_of_mine:Again:3", f"fixed:{K}")
    (drafter,) = engine.core.executor.drafters
    assert (
        drafter.repeats == 3
        and drafter.target is engine.core.executor.runner
        and drafter.target.taps == (1,)
    )
    assert drafter.profiled and drafter.num_trimmed == 1, "its slot is trimmed after the profile"
    assert engine.core.controller.latency.drafts[0] is not None
    requests, *_ = serve(engine)
    plain, *_ = serve(make_engine("drafts_of_mine:Again:3", "off"))
    assert outputs(plain) == outputs(requests)
    assert max(step["verified"][0] for step in engine.core.controller.state()["decisions"]) == 3
    (again,) = make_engine("drafts_of_mine:Again:3", f"fixed:{K}").core.executor.drafters
    assert not again.profiled, "its times have been kept"
    (another,) = make_engine("drafts_of_mine:Again:2", f"fixed:{K}").core.executor.drafters
    assert another.profiled, "under its own key"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("drafts_of_mine:NoSuch", "has no class 'NoSuch'"),
        ("no_such_module:LastSeen", "no module 'no_such_module'"),
        (
            "drafts_of_mine:Unspecified",
            "its spec is None, it must be a smartspec.control.DrafterSpec",
        ),
        ("drafts_of_mine:Untimed", "lacks profile_pass, which its spec promises"),
        ("drafts_of_mine:Again:3:4", "Again cannot be made, TypeError"),
        ("fractions:Fraction", "it lacks begin_step, view, draft, observe"),
        ("smartspec.drafters:ModelFreeDrafter", "it lacks propose"),
    ],
)
def test_what_is_wrong_with_a_drafter_is_said(name, told):
    with pytest.raises(ValueError, match=told):
        make_engine(name, "goodput")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"drafter": "drafts_of_mine:LastSeen"}, "drafts from texts: give a file of texts"),
        (
            {"drafter": "drafts_of_mine:Again", "texts": "texts.jsonl"},
            "needs a model, and the simulator runs none",
        ),
        ({"drafter": "lookup", "texts": "texts.jsonl"}, "not for drafter lookup"),
        ({"drafter": "nothing", "texts": "texts.jsonl"}, "unknown drafter 'nothing'"),
        ({"drafter": "drafts_of_mine:Tree", "texts": "texts.jsonl"}, "drafts trees"),
        ({"drafter": "recycling", "texts": "absent.jsonl"}, "cannot read the texts absent.jsonl"),
        ({"drafter": "recycling", "texts": "odd.jsonl"}, "odd.jsonl, line 2"),
        ({"drafter": "recycling", "texts": "empty.jsonl"}, "empty.jsonl holds no text"),
    ],
)
def test_what_a_simulation_cannot_do_is_said(options, told, folder):
    line = '{"prompt_token_ids": [1, 2], "output_token_ids": [3, 4, 5, 6]}\n'
    (folder / "texts.jsonl").write_text(line)
    (folder / "odd.jsonl").write_text(
        line + '{"prompt_token_ids": [1, 2], "output_token_ids": [3, -4]}\n'
    )
    (folder / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=told):
        simulate(Scenario(policy="fixed:2", batch=1, **options))


def test_texts_give_requests_their_lengths_and_start_over(folder):
    lines = [{"prompt_token_ids": [7] * n, "output_token_ids": [8] * (2 * n)} for n in (3, 5)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    scenario = Scenario(policy="fixed:2", drafter="prompt-lookup", texts="texts.jsonl", rate=1.0)
    for change, lengths in (
        ({}, [(3, 6), (5, 10)]),
        ({"num_requests": 3}, [(3, 6), (5, 10), (3, 6)]),
    ):
        records = simulate(Scenario(**(vars(scenario) | change))).run.records
        by_request = sorted(records, key=lambda record: int(record.prompt_id))
        assert [
            (record.num_prompt_tokens, record.num_output_tokens) for record in by_request
        ] == lengths
