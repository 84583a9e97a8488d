"""Drafts that are copied: how long a text has followed them says how good the next one is."""

from collections.abc import Iterator

import numpy as np
from toy_engine import VOCABULARY, ToyEngine, make_config, token

from smartspec.control import Outcome
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.vllm_plugin import Scheduler
from smartspec.vllm_plugin.speculation.followed import LEAST_FOLLOWED


class Passages(ToyEngine):
    """Lookups whose drafts are good while the text follows a passage, and bad otherwise."""

    def _draft(self, output) -> None:
        before, self.drafts = self.drafts, {}
        for name in output.num_scheduled_tokens:
            start = self.computed[name] + 1
            follows = self.follows(before.get(name), name, start)
            is_right = self._random.random(4) < (0.97 if follows else 0.25)
            self.drafts[name] = [
                token(name, start + i) if right else VOCABULARY for i, right in enumerate(is_right)
            ]

    def follows(self, draft, name, end) -> bool:
        """Whether the newest token is the one a draft was about to copy."""
        return bool(draft) and token(name, end - 1) in draft


def serve(tmp_path, engine_class, method="ngram", policy="goodput", **options) -> ToyEngine:
    settings = {"policy": policy, "decision_log": str(tmp_path / "log")}
    engine = engine_class(
        Scheduler(make_config(tmp_path, method=method, settings=settings)), **options
    )
    for number in range(6):
        engine.add(number, prompt_tokens=20, max_tokens=300)
    engine.run()
    return engine


def steps(tmp_path) -> Iterator[tuple[Outcome, np.ndarray]]:
    """Finished steps, and what their texts had followed before."""
    for record in RecordedLog(tmp_path / "log"):
        yield record.outcome, record.outcome.view.match_lengths[0]


def test_a_text_that_always_follows_has_followed_all_it_emitted(tmp_path):
    serve(tmp_path, ToyEngine, policy="fixed:3", acceptance=1.0)
    emitted = np.zeros(6, dtype=np.int64)
    some = [step for step in steps(tmp_path) if step[0].view.num_rows == 6][:40]
    for step, followed in some:
        np.testing.assert_array_equal(followed, emitted)
        emitted += step.accepted + 1


def test_a_text_that_never_follows_has_followed_nothing(tmp_path):
    serve(tmp_path, ToyEngine, policy="fixed:3", acceptance=0.0)
    assert not any(followed.any() for _, followed in steps(tmp_path))


def test_what_was_not_verified_tells_as_well(tmp_path):
    serve(tmp_path, ToyEngine, policy="off", acceptance=1.0)
    some = [followed for step, followed in steps(tmp_path) if step.view.num_rows == 6][:40]
    assert [set(followed.tolist()) for followed in some] == [{number} for number in range(40)]


def test_passages_are_drafted_longer_than_beginnings(tmp_path):
    serve(tmp_path, Passages)
    verified = {True: [], False: []}
    for step, followed in list(steps(tmp_path))[60:]:
        for length, tokens in zip(step.verified.tolist(), followed.tolist(), strict=True):
            verified[tokens > 0].append(length)
    assert min(map(len, verified.values())) > 100
    assert np.mean(verified[True]) > 2.5 > 1.5 > np.mean(verified[False])


def test_methods_that_do_not_copy_have_one_kind_of_draft(tmp_path):
    for method, matches in (
        ("ngram", LEAST_FOLLOWED),
        ("suffix", LEAST_FOLLOWED),
        ("medusa", (0,)),
    ):
        folder = tmp_path / method
        folder.mkdir()
        serve(folder, ToyEngine, method=method)
        (drafter,) = RecordedLog(folder / "log").header.drafters
        assert drafter.match_lengths == matches
