"""Baselines that are given measurements or machines: sssd, turbospec, batch-table and sequoia from
a profiling run."""

import json

import numpy as np
import pytest
from baseline_cases import K, make_latency, make_view, observe, planned, planned_trees
from drafter_cases import MODEL
from factories import learn, make_outcome

from lab.policies.sssd import Sssd, branch_length, token_budget
from lab.policies.turbospec import TurboSpec
from smartspec.core.policy_names import parse_policy


@pytest.mark.parametrize(
    ("ratio", "num_rows", "tokens"),
    [
        *[(192, 1, 32), (192, 2, 32), (192, 3, 20), (192, 4, 24), (192, 6, 16), (192, 8, 24)],
        *[(192, 64, 3), (192, 96, 2), (192, 97, 0), (100, 8, 12)],
        *[(20, 1, 16), (10, 1, 10), (10, 6, 0)],
    ],
)
def test_sssd_fills_the_roofline_and_stops_where_it_is_full(ratio, num_rows, tokens):
    assert token_budget(ratio, num_rows) == tokens


@pytest.mark.parametrize(
    ("budget", "depth"), [(2, 1), (5, 4), (6, 5), (8, 5), (32, 6), (40, 8), (64, 10)]
)
def test_sssd_branches_deepen_slowly(budget, depth):
    assert branch_length(budget) == depth


def test_sssd_makes_trees_of_heads_and_chains_of_models():
    of_head = planned_trees(Sssd(192), [0])
    assert (of_head.lengths.tolist(), of_head.passes.tolist(), of_head.width) == ([31], [6], 5)
    of_model = planned_trees(Sssd(192), [0], MODEL)
    assert (of_model.lengths.tolist(), of_model.width) == ([6], 1)


def test_sssd_takes_its_ratio_from_the_profile():
    for per_token, ratio in ((2e-4, 101), (1e-6, 192)):  # beside 20 ms
        policy = Sssd()
        planned(policy, make_view(1), latency=make_latency(per_token=per_token))
        assert policy.ratio == ratio


def test_turbospec_averages_a_hundred_steps_and_wants_no_margin():
    policy, view = TurboSpec(1), make_view(4)
    assert policy.acceptance == 0.7
    for accepted in [1] * 50 + [4] * 100:
        observe(policy, view, np.full(4, 4), np.full(4, accepted))
    assert policy.acceptance == 1.0, "what is more than a hundred steps ago is forgotten"
    assert policy.margin == 0.0


def test_turbospec_decides_every_two_hundred_steps():
    policy, view = TurboSpec(), make_view(4)
    first = planned(policy, view).lengths.tolist()
    for _ in range(198):
        plan = planned(policy, view)
        learn(policy, make_outcome(view, plan, plan.lengths, np.zeros(4, dtype=int)))
        assert plan.lengths.tolist() == first
    planned(policy, view)
    assert max(planned(policy, view).lengths) < max(first)


@pytest.fixture
def profiling_run(tmp_path):
    def write(**content):
        path = tmp_path / "run.json"
        path.write_text(json.dumps(content))
        return path

    return write


def test_batch_table_looks_measured_lengths_up_and_assumes_nothing(profiling_run):
    policy = parse_policy(f"batch-table:{profiling_run(best_lengths={'1': 7, '4': 3, '16': 0})}", K)
    lengths = [
        planned(policy, make_view(n), acceptance=0.1).lengths[0] for n in (1, 2, 4, 5, 16, 99)
    ]
    assert lengths == [7, 3, 3, 0, 0, 0]


def test_sequoia_takes_acceptance_by_rank_from_the_run_and_not_from_the_requests(profiling_run):
    learned = {  # drafts are worthless
        "survival": 0.01,
        "estimates": {
            "latency": make_latency(draft_pass=1e-4),
            "rank_chances": {1: np.array([0.1, 0.05])},
        },
    }
    of_requests, of_run = (
        planned_trees(parse_policy(name, K), [0], **learned)
        for name in ("sequoia", f"sequoia:{profiling_run(acceptance_by_rank=[0.6, 0.2, 0.08])}")
    )
    assert of_requests.lengths[0] < 5 and of_run.lengths[0] > 8
    np.testing.assert_allclose(of_run.extras["chances"][:3], np.tile([0.6, 0.2, 0.08], (3, 1)))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("batch-table", {}, "no profiling run with best_lengths"),
        ("batch-table", {"best_lengths": {"4": 2, "1": 3}}, "ascending"),
        ("batch-table", {"best_lengths": {"1": "x"}}, "no lengths by number of requests"),
        ("batch-table", {"best_lengths": {}}, "ascending"),
        ("sequoia", {"acceptance_by_rank": [0.9, 0.3]}, "no shares of at most 1"),
        ("sequoia", {"acceptance_by_rank": "x"}, "no shares of at most 1"),
        ("sequoia", {"best_lengths": {"1": 3}}, "no profiling run with acceptance_by_rank"),
    ],
)
def test_a_profiling_run_that_cannot_be_is_refused_with_its_name(
    profiling_run, name, content, problem
):
    path = profiling_run(**content)
    with pytest.raises(ValueError, match=problem) as error:
        parse_policy(f"{name}:{path}", K)
    assert str(path) in str(error.value)


def test_a_missing_file_and_a_name_that_is_none_say_what_to_give():
    with pytest.raises(ValueError, match=r"cannot read the profiling run gone\.json"):
        parse_policy("batch-table:gone.json", K)
    with pytest.raises(
        ValueError, match=r"from 0 to 1, the \.json file of a profiling run, or leave it out"
    ):
        parse_policy("batch-table:gone.txt", K)
