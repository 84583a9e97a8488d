"""Trees of point masses change no token (in distribution: test_tree_distribution)."""

import numpy as np
import torch
from random_trees import path_to, random_tree, tree_of
from test_verification import VOCABULARY, mixed_requests, prefix_logits

from smartspec.core.batch import NO_DRAFT
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.sampling.verification import verify


def tree_logits(requests, drafts) -> torch.Tensor:
    rows = [
        prefix_logits([*request.token_ids, *path_to(draft, node)])
        for request, draft in zip(requests, drafts, strict=True)
        for node in range(-1, len(draft))
    ]
    return torch.from_numpy(np.stack(rows))


def decode_trees(requests, draft_of) -> int:
    """Decode to the end; returns how many draft tokens were accepted."""
    running, num_accepted = list(requests), 0
    while running:
        drafts = [draft_of(request) for request in running]
        for request, draft, result in zip(
            running, drafts, verify(tree_logits(running, drafts), running, drafts), strict=True
        ):
            if result.num_accepted:
                last = (
                    result.num_accepted - 1
                    if result.accepted_nodes is None
                    else result.accepted_nodes[-1]
                )
                assert path_to(draft, last) == list(result.emitted_token_ids[:-1])
            num_accepted += result.num_accepted
            request.append(result.emitted_token_ids)
        running = [request for request in running if request.finish_reason is None]
    return num_accepted


def test_trees_of_point_masses_never_change_a_token():
    """Greedy and sampled requests, with penalties, rules and filters; another random tree in every
    step."""
    plain, requests, random = mixed_requests(), mixed_requests(), np.random.default_rng(0)
    decode_trees(plain, lambda request: NO_DRAFT)
    expected = [request.output_token_ids.tolist() for request in plain]

    def draft_of(request):
        ground_truth = expected[request.request_id][request.num_output_tokens :]
        return random_tree(random, int(random.integers(0, 12)), ground_truth, VOCABULARY)

    assert decode_trees(requests, draft_of) > 100
    assert [request.output_token_ids.tolist() for request in requests] == expected


def test_logprobs_are_those_of_the_path():
    params = SamplingParams(temperature=0.0, logprobs=2, max_tokens=8)
    plain, request = Request(0, [3], params, seed=0), Request(0, [3], params, seed=0)
    first = verify(tree_logits([plain], [NO_DRAFT]), [plain], [NO_DRAFT])[0]
    plain.append(first.emitted_token_ids)
    second = verify(tree_logits([plain], [NO_DRAFT]), [plain], [NO_DRAFT])[0]
    right = first.emitted_token_ids[0]
    tree = tree_of([(right + 1) % VOCABULARY, right], [-1, -1])
    (result,) = verify(tree_logits([request], [tree]), [request], [tree])
    assert result.accepted_nodes == (1,)
    assert result.logprobs == (*first.logprobs, *second.logprobs)
