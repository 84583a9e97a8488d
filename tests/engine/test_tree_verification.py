"""Trees change no output: token for token where they are point masses, in distribution where they were drawn."""

import numpy as np
import torch
from markov_model import make_requests, pair_probs, total_variation
from random_trees import path_to, random_tree
from test_verification import VOCABULARY, mixed_requests, prefix_logits

from smartspec.core.batch import NO_DRAFT, Draft
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.tree_expansion import TreeExpansion, best_children
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
                last = result.num_accepted - 1 if result.accepted_nodes is None else result.accepted_nodes[-1]
                assert path_to(draft, last) == list(result.emitted_token_ids[:-1])
            num_accepted += result.num_accepted
            request.append(result.emitted_token_ids)
        running = [request for request in running if request.finish_reason is None]
    return num_accepted


def test_trees_of_point_masses_never_change_a_token():
    """Greedy and sampled requests, with penalties, rules and filters; another random tree in every step."""
    plain, requests, random = mixed_requests(), mixed_requests(), np.random.default_rng(0)
    decode_trees(plain, lambda request: NO_DRAFT)
    truths = [request.output_token_ids.tolist() for request in plain]

    def draft_of(request):
        truth = truths[request.request_id][request.num_output_tokens :]
        return random_tree(random, int(random.integers(0, 12)), truth, VOCABULARY)

    assert decode_trees(requests, draft_of) > 100
    assert [request.output_token_ids.tolist() for request in requests] == truths


def test_logprobs_are_those_of_the_path():
    params = SamplingParams(temperature=0.0, logprobs=2, max_tokens=8)
    plain, request = Request(0, [3], params, seed=0), Request(0, [3], params, seed=0)
    steps = [verify(tree_logits([plain], [NO_DRAFT]), [plain], [NO_DRAFT])[0] for _ in range(1)]
    plain.append(steps[0].emitted_token_ids)
    second = verify(tree_logits([plain], [NO_DRAFT]), [plain], [NO_DRAFT])[0]
    right = steps[0].emitted_token_ids[0]
    tree = Draft(np.array([(right + 1) % VOCABULARY, right], dtype=np.int32), np.array([-1, -1], dtype=np.int32))
    (result,) = verify(tree_logits([request], [tree]), [request], [tree])
    assert result.accepted_nodes == (1,)
    assert result.logprobs == (*steps[0].logprobs, *second.logprobs)


V = 5
TARGET = np.random.default_rng(1).normal(0, 1.2, (V, V)).astype(np.float32)
DRAFT = torch.from_numpy(TARGET + np.random.default_rng(2).normal(0, 1.0, TARGET.shape).astype(np.float32)).softmax(-1)
NUM = 2_500
BOUND = np.sqrt(V**2 / NUM)


def drawn_tree(random: np.random.Generator, last: int, *, with_replacement: bool = False, honest: bool = True) -> Draft:
    """Two or three children of the text, drawn without replacement, and two of each of them."""
    token_ids, parents, probs = [], [], []

    def draw(parent: int, token: int, num: int) -> None:
        q = DRAFT[token].double().numpy().copy()
        for _ in range(num):
            q /= q.sum()
            token_ids.append(int(random.choice(V, p=q)))
            parents.append(parent)
            probs.append(q.copy() if honest else np.full(V, 1 / V))
            if not with_replacement:
                q[token_ids[-1]] = 0.0

    draw(-1, last, int(random.integers(1, 4)))
    for node in range(len(token_ids)):
        draw(node, token_ids[node], 2)
    rows = torch.from_numpy(np.stack(probs)).float()
    return Draft(np.array(token_ids, dtype=np.int32), np.array(parents, dtype=np.int32), probs=rows)


def decode_drawn(draft_of, **params) -> tuple[np.ndarray, float]:
    """The first two tokens of NUM requests, int [NUM, 2], and accepted draft tokens a request in the first step."""
    requests, random = make_requests(NUM, max_tokens=2, **params), np.random.default_rng(7)
    drafts = [draft_of(random, request.token_ids[-1]) for request in requests]
    first_step, running = 0, requests
    while running:
        last = [np.concatenate([r.token_ids[-1:], d.token_ids]) for r, d in zip(running, drafts, strict=True)]
        results = verify(torch.from_numpy(TARGET[np.concatenate(last)]), running, drafts)
        first_step = first_step or sum(result.num_accepted for result in results)
        for request, result in zip(running, results, strict=True):
            request.append(result.emitted_token_ids)
        running = [request for request in running if request.finish_reason is None]
        drafts = [NO_DRAFT] * len(running)
    return np.stack([request.output_token_ids for request in requests]), first_step / NUM


def test_drawn_trees_keep_the_targets_distribution():
    options = {"temperature": 0.8, "top_k": 4}
    outputs, accepted = decode_drawn(drawn_tree, **options)
    assert total_variation(outputs, pair_probs(TARGET, SamplingParams(**options))) < BOUND
    chain_accepted = decode_drawn(lambda random, last: drawn_chain(random, last), **options)[1]
    assert accepted > 1.1 * chain_accepted


def best_first_tree(random: np.random.Generator, last: int) -> Draft:
    """As a head makes one: of the likeliest two children of nodes, in one to three passes, the best five."""
    growing, fed, token_ids, place = TreeExpansion(2, 5), [-1], [last], 1
    for _ in range(int(random.integers(1, 4))):
        growing.add(fed, *best_children(DRAFT[token_ids].log(), 2))
        if not (fed := growing.frontier()):
            break
        growing.feed(fed, place)
        place += len(fed)
        token_ids = growing.token_ids(fed).tolist()
    return growing.draft()


def test_trees_as_heads_make_them_keep_the_targets_distribution():
    options = {"temperature": 0.8, "top_k": 4}
    outputs, accepted = decode_drawn(best_first_tree, **options)
    assert total_variation(outputs, pair_probs(TARGET, SamplingParams(**options))) < BOUND
    assert accepted > 0.5


def drawn_chain(random: np.random.Generator, last: int) -> Draft:
    first = int(random.choice(V, p=DRAFT[last].double().numpy() / DRAFT[last].double().sum().item()))
    second = int(random.choice(V, p=DRAFT[first].double().numpy() / DRAFT[first].double().sum().item()))
    rows = torch.stack([DRAFT[last], DRAFT[first]])
    return Draft(np.array([first, second], dtype=np.int32), np.array([-1, 0], dtype=np.int32), probs=rows)


def test_a_wrong_distribution_of_the_children_fails_the_same_check():
    outputs, _ = decode_drawn(lambda random, last: drawn_tree(random, last, honest=False))
    assert total_variation(outputs, pair_probs(TARGET, SamplingParams())) > 2 * BOUND
