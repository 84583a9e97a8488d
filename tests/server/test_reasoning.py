"""Speculation on reasoning steps: who writes what, within which bounds, and that every answer says
it is lossy."""

import asyncio
from types import SimpleNamespace

import pytest
from fake_server import MODEL, check_error, user
from real_server import running_model

from lab.reasoning import speculator
from lab.reasoning.methods import LARGE, SMALL, TAKEOVERS, Pair, spec_reason, speculative_thinking
from lab.reasoning.speculator import load_speculator
from lab.reasoning.writer import Written
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.config import EngineConfig

DIGITS = tuple(range(100, 110))
SCORE_TASK = (50, 51)
BODY = {
    "model": MODEL,
    "messages": [user("What is 2 + 2? Think.")],
    "temperature": 0,
}


class Scripted:
    """A writer that says what it is told, a text and a number of tokens at a time; and what it was
    given."""

    def __init__(self, *said: tuple[str, int], token: int = 1, scores: tuple[int, ...] = ()):
        self.said, self.scores, self.token = list(said), list(scores), token
        self.calls: list[tuple[list[int], SamplingParams]] = []

    async def write(self, token_ids: list[int], params: SamplingParams) -> Written:
        self.calls.append((list(token_ids), params))
        if params.allowed_token_ids:
            return Written((DIGITS[self.scores.pop(0)],), "", False)
        text, num_tokens = self.said.pop(0)
        return Written(
            (self.token,) * min(num_tokens, params.max_tokens), text, ended=not self.said
        )


def run(method, small: Scripted, large: Scripted, max_tokens: int = 1000, **options) -> list:
    async def steps():
        pair = Pair(small, large, SCORE_TASK, DIGITS)
        params = SamplingParams(max_tokens=max_tokens, seed=3)
        return [step async for step in method(pair, [7, 8], params, step_tokens=50, **options)]

    return asyncio.run(steps())


def test_a_step_stays_from_the_threshold_on_and_is_else_written_anew():
    small = Scripted(("a\n\n", 4), ("b\n\n", 5), ("c", 6))
    large = Scripted(("B\n\n", 3), ("never", 1), token=2, scores=(7, 6, 9))
    steps = run(spec_reason, small, large, threshold=7)
    assert [(step.by, len(step.token_ids), step.score) for step in steps] == [
        (SMALL, 4, 7),
        (LARGE, 3, 6),
        (SMALL, 6, 9),
    ]
    assert small.calls[2][0] == [7, 8, 1, 1, 1, 1, 2, 2, 2], "what was dropped is not in the text"
    assert large.calls[0][0] == [7, 8, 1, 1, 1, 1, *SCORE_TASK]
    assert len({params.seed for _, params in small.calls}) == 3
    assert all(params.stop == ("\n\n",) and params.max_tokens <= 50 for _, params in small.calls)


def test_an_answer_ends_at_its_length():
    small = Scripted(*[("a\n\n", 40)] * 9)
    steps = run(spec_reason, small, Scripted(scores=(9,) * 9), max_tokens=100, threshold=7)
    assert [len(step.token_ids) for step in steps] == [40, 40, 20]


def test_the_large_model_begins_and_takes_over_where_a_step_begins_with_a_cue():
    small = Scripted(
        ("a\n\n", 9), ("Wait, is that so", 20), ("b\n\n", 8), ("It goes on", 20), ("c", 5)
    )
    large = Scripted(("first", 100), ("checked", 125), ("never", 1), token=2)
    steps = run(speculative_thinking, small, large)
    assert [(step.by, len(step.token_ids), step.cue) for step in steps] == [
        (LARGE, 100, None),
        (SMALL, 9, None),
        (LARGE, TAKEOVERS["verify"], "verify"),
        (SMALL, 8, None),
        (SMALL, 20, None),
        (SMALL, 5, None),
    ]
    assert large.calls[1][0][-9:] == [1] * 9, "the words with the cue are dropped"


@pytest.fixture(scope="module")
def server_of_two():
    with running_model(
        policy="fixed:3", drafters=("prompt-lookup",), max_model_len=512, speculates=True
    ) as server:
        yield server


@pytest.mark.parametrize("method", ["spec-reason", "speculative-thinking"])
def test_real_models_answer_within_bounds_and_say_so(server_of_two, method):
    options = {
        "reasoning_speculation": {"method": method, "step_tokens": 12, "threshold": 5},
        "max_tokens": 40,
    }
    found = server_of_two.got("/v1/reasoning/chat/completions", BODY | options)
    report = found["reasoning_speculation"]
    assert "lossy" in report["note"] and report["method"] == method
    assert (
        sum(step["tokens"] for step in report["steps"]) == found["usage"]["completion_tokens"] <= 40
    )
    assert found["choices"][0]["message"]["content"] and set(report["seconds"]) == {SMALL, LARGE}
    assert all(seconds > 0 for by, seconds in report["seconds"].items() if report["written"][by])
    again = server_of_two.got("/v1/reasoning/chat/completions", BODY | options)
    assert again["choices"] == found["choices"]


def test_at_threshold_0_the_small_model_alone_writes_and_the_text_is_its_own(server_of_two):
    options = {"reasoning_speculation": {"threshold": 0, "step_tokens": 40}, "max_tokens": 40}
    report = server_of_two.got("/v1/reasoning/chat/completions", BODY | options)
    plain = server_of_two.got("/v1/chat/completions", BODY | {"max_tokens": 40})
    assert report["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
    assert "reasoning_speculation" not in plain


def test_max_tokens_is_clipped_and_the_answer_says_so(server_of_two):
    answer = server_of_two.post("/v1/reasoning/chat/completions", BODY | {"max_tokens": 100_000})
    assert answer.status_code == 200 and 0 < int(answer.headers["X-Max-Tokens-Clipped"]) < 512


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"reasoning_speculation": {"method": "other"}}, "reasoning_speculation.method"),
        ({"reasoning_speculation": {"threshold": 10}}, "reasoning_speculation.threshold"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"bad_words": ["no"]}, "bad_words"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(server_of_two, options, param):
    answer = server_of_two.post("/v1/reasoning/chat/completions", BODY | options)
    check_error(answer, 400, param)


@pytest.mark.parametrize(
    ("vocabulary", "problem"),
    [
        (
            {"a": 0},
            "'small' has a vocabulary of 1 tokens, 'large' of 2: use a --speculator of the same "
            "family",
        ),
        ({"a": 1, "b": 0}, "the vocabularies of 'small' and 'large' map tokens to different ids"),
        (
            {"a": 0, "b": 1},
            "--speculator small has 5 positions, the model serves 9: start with --max-model-len 5",
        ),
    ],
)
def test_a_speculator_that_cannot_go_on_with_the_text_is_refused(monkeypatch, vocabulary, problem):
    def engine(name: str, vocabulary: dict[str, int], max_model_len: int) -> SimpleNamespace:
        tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)
        loaded = SimpleNamespace(name=name, vocab_size=len(vocabulary), tokenizer=tokenizer)
        return SimpleNamespace(
            loaded=loaded, max_model_len=max_model_len, config=EngineConfig(model=name)
        )

    monkeypatch.setattr(
        speculator, "build_engine", lambda config, report: engine(config.model, vocabulary, 5)
    )
    with pytest.raises(ValueError, match=problem):
        load_speculator("small", engine("large", {"a": 0, "b": 1}, 9))


def test_it_is_off_by_default(server):
    assert server.post("/v1/reasoning/chat/completions", BODY).status_code == 404
    answer = server.chat(**BODY, reasoning_speculation={})
    check_error(answer, 400, "reasoning_speculation")
