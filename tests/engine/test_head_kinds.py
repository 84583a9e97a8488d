"""Heads of other kinds than EAGLE-3, on tiny models: drafts as in plain torch, outputs as in plain decoding."""

import numpy as np
import pytest
import torch
from test_head_drafter import RandomShapes, generate, let_some_be_right, noted_drafts
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from lab.train.start import head_config
from lab.train.unroll import TrainingBatch, unroll
from smartspec.core.batch import Batch
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.drafters.ngram_tree import NgramTreeDrafter
from smartspec.engine.drafting import head_runner as head_runner_module
from smartspec.engine.drafting import native_head
from smartspec.engine.drafting.eagle import EagleConfig, EagleHead
from smartspec.engine.drafting.eagle3 import HeadConfig
from smartspec.engine.drafting.head_drafter import HeadDrafter
from smartspec.engine.drafting.head_kinds import Head, head_drafter
from smartspec.engine.drafting.medusa import MedusaConfig, MedusaHead
from smartspec.engine.drafting.p_eagle import PEagleHead
from smartspec.engine.drafting.product_tree import product_tree
from smartspec.engine.drafting.redrafter import ReDrafterConfig, ReDrafterHead
from smartspec.engine.drafting.with_ngrams import WithNgrams
from smartspec.engine.models import model_runner
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.build import with_ngrams
from smartspec.engine.runtime.executor import LiveExecutor

SIZE, LAST = SHAPE["hidden_size"], (SHAPE["num_hidden_layers"] + 1,)
DEPTH = 4  # of drafts made in one pass
NUM_DRAFT_TOKENS = 40


def random_head(kind: str) -> Head:
    torch.manual_seed(0)
    layer = head_config(tiny_llama().config, NUM_DRAFT_TOKENS).layer
    ids = torch.from_numpy(np.sort(np.random.default_rng(0).choice(VOCABULARY, NUM_DRAFT_TOKENS, replace=False)))
    head: Head
    if kind == "eagle":
        head = EagleHead(EagleConfig(layer, LAST, fc_bias=True))
    elif kind == "p-eagle":
        head = PEagleHead(HeadConfig(layer, NUM_DRAFT_TOKENS, (1, 2), SIZE, fc_norm=True), 7, DEPTH)
        head.d2t.copy_(ids - torch.arange(NUM_DRAFT_TOKENS))
    elif kind == "redrafter":
        head = ReDrafterHead(ReDrafterConfig(SIZE, VOCABULARY, NUM_DRAFT_TOKENS, 2, LAST))
        head.token_map.copy_(ids)
    else:
        num_outputs = 1 if kind == "medusa" else DEPTH
        head = MedusaHead(MedusaConfig(SIZE, VOCABULARY, NUM_DRAFT_TOKENS, DEPTH, 2, num_outputs, LAST, bias=True))
        head.token_map.copy_(ids)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.requires_grad_(False).eval()


ONE_PASS = ("p-eagle", "medusa", "medusa with an output for each head")
KINDS = ("eagle", "redrafter", *ONE_PASS)


def make_core(
    kind: str, pause: float = 0.4, num_blocks: int = 24, seed: int = 0, max_width: int = 1, max_draft_tokens: int = 5
) -> EngineCore:
    head = random_head(kind)
    target = ModelRunner(as_loaded(tiny_llama(0)), num_slots=4, max_len=128, taps=head.config.taps)
    scheduler = Scheduler(
        BlockManager(num_blocks, 4, 4), max_batched_tokens=16, max_model_len=128, max_draft_tokens=max_draft_tokens
    )
    executor = LiveExecutor(target, (head_drafter(head, target, name="head", num_slots=4, is_rounded=False),))
    return EngineCore(scheduler, executor, AnyLength(seed, pause, max_width))


class AnyLength(RandomShapes):
    """As RandomShapes, of drafters that may not make drafts as long as planned."""

    def cut(self, plan, drafted):
        assert (drafted.lengths <= plan.lengths).all()
        return np.where(self.random.random(len(drafted.lengths)) < 0.3, drafted.lengths // 2, drafted.lengths)


@pytest.fixture(params=["the kernels of this machine", "torch", "small passes"])
def attention(request, monkeypatch):
    if request.param == "small passes":
        monkeypatch.setattr(head_runner_module, "MAX_CHUNK", DEPTH - 1)  # less than what a draft needs of its pass
        monkeypatch.setattr(native_head, "MIN_ROWS", 2)
    if request.param == "torch":
        for module in (model_runner, native_head, head_runner_module):
            monkeypatch.setattr(module, "max_tokens_per_tile", lambda *model: 0)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("max_width", [1, 6])
def test_outputs_are_those_of_plain_decoding(kind, temperature, max_width):
    """Other shapes in every step, through preemption, prefix hits and catch-up."""
    expected = [r.output_token_ids.tolist() for r in generate(make_core(kind, pause=1.0, num_blocks=60), temperature)]
    core = make_core(kind, max_width=max_width, max_draft_tokens=5 if max_width == 1 else 12)
    if max_width > 1:
        let_some_be_right(core, expected)
    requests = generate(core, temperature)
    assert [r.output_token_ids.tolist() for r in requests] == expected
    assert core.controller.num_tested > core.controller.num_accepted
    assert any(r.num_preemptions for r in requests) and any(r.num_cached_tokens for r in requests)
    if max_width > 1:
        assert core.controller.num_trees > 10 and core.controller.num_accepted > 20


def last_hidden_states(token_ids: list[int]) -> torch.Tensor:
    """Of the stock model: [n, hidden_size]."""
    return tiny_llama(0, attention="eager").model(torch.tensor([token_ids])).last_hidden_state[0]


def eagle_logits(head: EagleHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """After a text and a chain drafted after it, by transformers' layer: [V]."""
    target = tiny_llama(0, attention="eager")
    head.config.layer._attn_implementation = "eager"
    layer = LlamaDecoderLayer(head.config.layer, 0)
    layer.input_layernorm = torch.nn.Identity()
    layer.load_state_dict(head.layers[0].state_dict(), strict=True)
    hidden = last_hidden_states(text[:-1])
    tokens = torch.tensor(text[1:] + drafted)
    for num_known in range(len(hidden), len(tokens) + 1):
        joined = torch.cat([target.model.embed_tokens(tokens[:num_known]), hidden], dim=-1)
        turn = target.model.rotary_emb(joined, torch.arange(num_known)[None])
        causal = torch.full((num_known, num_known), float("-inf")).triu(1)[None, None]
        output = layer(head.fc(joined)[None], attention_mask=causal, position_embeddings=turn)
        output = (output[0] if isinstance(output, tuple) else output).reshape(num_known, -1)
        hidden = torch.cat([hidden, output[-1:]])
    return target.lm_head(hidden[-1])


def p_eagle_logits(head: PEagleHead, text: list[int], depth: int) -> torch.Tensor:
    """By the code that trains it: [draft_vocab_size]."""
    states = tiny_llama(0, attention="eager").model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    # The second of two layers' own output, which transformers only gives after the final norm.
    captured = []
    model = tiny_llama(0, attention="eager")
    model.model.layers[1].register_forward_hook(lambda module, args, output: captured.append(output))
    model(torch.tensor([text[:-1]]))
    last = captured[0][0] if isinstance(captured[0], tuple) else captured[0]
    features = torch.cat([states[1], last.reshape(states[1].shape)], dim=-1)
    nothing = torch.zeros(1)
    batch = TrainingBatch(torch.tensor([text]), features, nothing, nothing, nothing, nothing, nothing)
    *_, normed = unroll(head, model.get_input_embeddings().weight, batch, depth + 1)
    return head.lm_head(normed[0, -1])


def medusa_logits(head: MedusaHead, text: list[int], depth: int) -> torch.Tensor:
    """[draft_vocab_size]."""
    x, weights = last_hidden_states(text[:-1])[-1], head.state_dict()
    for layer in range(head.config.num_layers):
        name = f"blocks.{depth}.layers.{layer}"
        x = x + torch.nn.functional.silu(weights[f"{name}.weight"] @ x + weights[f"{name}.bias"])
    output = depth if f"lm_heads.{depth}.weight" in weights else 0
    return weights[f"lm_heads.{output}.weight"] @ x


def redrafter_logits(head: ReDrafterHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """By the paper's formulas: [draft_vocab_size]."""
    table = tiny_llama(0, attention="eager").get_input_embeddings().weight
    w, silu = head.state_dict(), torch.nn.functional.silu
    state = table[text[-1]]
    for token in drafted:
        state = silu(w["rnn_u.weight"] @ state + w["rnn_w.weight"] @ table[token] + w["rnn_u.bias"])
    x = w["join.weight"] @ torch.cat([last_hidden_states(text[:-1])[-1], state]) + w["join.bias"]
    for layer in range(head.config.num_layers):
        x = x + silu(w[f"blocks.{layer}.weight"] @ x + w[f"blocks.{layer}.bias"])
    return w["lm_head.weight"] @ x


def reference(head: Head, text: list[int], path: list[int]) -> torch.Tensor:
    """Probabilities of the draft vocabulary's tokens after a path drafted after a text."""
    if isinstance(head, EagleHead):
        return eagle_logits(head, text, path).softmax(-1)
    if isinstance(head, PEagleHead):
        return p_eagle_logits(head, text, len(path)).softmax(-1)
    if isinstance(head, ReDrafterHead):
        return redrafter_logits(head, text, path).softmax(-1)
    return medusa_logits(head, text, len(path)).softmax(-1)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_width", [1, 4])
def test_drafts_are_those_of_plain_torch(kind, max_width):
    """After catch-ups, rejections, preemptions and prefixes taken over from other slots; every node is as likely as it
    should be after its path, and no better one was left out of the chain."""
    max_draft_tokens, head = 5 if max_width == 1 else 12, random_head(kind)
    core = make_core(kind, pause=0.2, max_width=max_width, max_draft_tokens=max_draft_tokens)
    drafts = noted_drafts(core)
    requests = generate(core)
    assert any(r.num_cached_tokens for r in requests) and any(r.num_preemptions for r in requests)
    assert len(drafts) > 40
    ids = head.target_ids.tolist()
    chosen = drafts[::9] if max_width == 1 else [pair for pair in drafts if not pair[1].is_chain][::4]
    assert len(chosen) > 4
    for text, draft in chosen:
        for node, path in enumerate(draft.paths[1:]):
            chances = reference(head, text, list(path[:-1])).detach()
            assert draft.confidence[node] == pytest.approx(float(chances[ids.index(path[-1])]), rel=2e-3)
            if max_width == 1:
                assert path[-1] == ids[int(chances.argmax())]


@pytest.mark.parametrize("kind", ONE_PASS)
def test_one_pass_makes_a_whole_draft(kind, monkeypatch):
    core = make_core(kind, pause=0.0)
    (drafter,) = core.executor.drafters
    assert drafter.spec.one_pass_depth == DEPTH
    name = "_pass" if kind == "p-eagle" else "forward"
    drafts, calls, run = noted_drafts(core), [], getattr(drafter.runner, name)
    monkeypatch.setattr(
        drafter.runner, name, lambda segments, *rest: calls.append(len(segments)) or run(segments, *rest)
    )
    generate(core)
    assert sum(calls) == len(drafts) and max(len(draft) for _, draft in drafts) == DEPTH


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("kind", KINDS)
def test_features_without_numbers_make_drafts_that_can_be_verified(kind):
    core = make_core(kind)
    (drafter,) = core.executor.drafters
    request = Request(0, [1, 2, 3], SamplingParams(max_tokens=9), seed=0)
    request.slot, request.num_computed_tokens = 0, 2
    drafter._num_known[0] = 2
    known = drafter.runner.features[0, :2] if isinstance(drafter, HeadDrafter) else drafter.runner.hidden[0]
    known.fill_(torch.nan)
    (draft,) = drafter.draft_trees(Batch(decoding=(request,)), np.array([6]), np.array([3]), 3)
    assert (draft.parents < np.arange(len(draft))).all() and len(draft) > 0
    assert ((draft.confidence >= 0.0) & (draft.confidence <= 1.0)).all()
    assert ((draft.token_ids >= 0) & (draft.token_ids < VOCABULARY)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_beside_the_ngram_tree_a_head_drafts_as_deep_in_a_pass_as_alone(kind):
    (drafter,) = make_core(kind).executor.drafters
    both, _ = with_ngrams((drafter, NgramTreeDrafter(max_draft_tokens=5)))
    assert isinstance(both, WithNgrams)
    assert both.spec == drafter.spec and both.spec.one_pass_depth == (DEPTH if kind in ONE_PASS else 0)


def test_the_best_tree_of_a_product_is_found():
    """As by trying all paths."""
    random = np.random.default_rng(0)
    chances = -np.sort(-random.dirichlet(np.full(4, 0.5), 3))
    draft = product_tree([[0, 1, 2, 3]] * 3, chances.tolist(), 9)
    paths = [(a,) for a in range(4)] + [(a, b) for a in range(4) for b in range(4)]
    paths += [(*path, c) for path in paths if len(path) == 2 for c in range(4)]
    worth = {path: np.prod([chances[depth, rank] for depth, rank in enumerate(path)]) for path in paths}
    best = sorted(worth.values(), reverse=True)[:9]
    assert [worth[path] for path in draft.paths[1:]] == pytest.approx(best)
    assert product_tree([[5], [6]], [[0.5], [0.4]], 9).is_chain
