"""Heads of all kinds on a tiny model: made at random, and what plain torch, or the code that trains
them, makes of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from tiny_engine import AnyLength, core_of
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from lab.heads.eagle.head import EagleConfig, EagleHead
from lab.heads.medusa.head import MedusaConfig, MedusaHead
from lab.heads.p_eagle.head import PEagleHead
from lab.heads.redrafter.head import ReDrafterConfig, ReDrafterHead
from lab.train.start import head_config
from lab.train.unroll import TrainingBatch, unroll
from smartspec.core.engine_core import EngineCore
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.eagle3 import Eagle3Head, HeadConfig
from smartspec.engine.drafting.head.kinds import head_drafter
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor

SIZE, LAST = SHAPE["hidden_size"], (SHAPE["num_hidden_layers"] + 1,)
DEPTH = 4  # of drafts made in one pass
NUM_DRAFT_TOKENS = 40


@dataclass(frozen=True)
class HeadCase:
    """A kind of head."""

    name: str
    build: Callable[[], nn.Module]  # with any weights
    # after a text and a path drafted after it
    logits: Callable[[nn.Module, list[int], list[int]], torch.Tensor]
    is_one_pass: bool = False  # makes a whole draft

    def make(self) -> nn.Module:
        """One with random weights, the same every time."""
        torch.manual_seed(0)
        head = self.build()
        for parameter in head.parameters():
            nn.init.normal_(parameter, std=0.3)
        return head.requires_grad_(False).eval()

    def __str__(self) -> str:
        return self.name


def draft_ids() -> torch.Tensor:
    """Tokens of the draft vocabulary, ascending: int64 [NUM_DRAFT_TOKENS]."""
    return torch.from_numpy(
        np.sort(np.random.default_rng(0).choice(VOCABULARY, NUM_DRAFT_TOKENS, replace=False))
    )


def build_eagle() -> EagleHead:
    return EagleHead(
        EagleConfig(head_config(tiny_llama().config, NUM_DRAFT_TOKENS).layer, LAST, fc_bias=True)
    )


def build_p_eagle() -> PEagleHead:
    return with_ids(PEagleHead(of_eagle3(fc_norm=True), 7, DEPTH))


def build_eagle3(*variants: str) -> Eagle3Head:
    return with_ids(Eagle3Head(of_eagle3(**dict.fromkeys(variants, True))))


def of_eagle3(**variants: bool) -> HeadConfig:
    layer = head_config(tiny_llama().config, NUM_DRAFT_TOKENS).layer
    return HeadConfig(layer, NUM_DRAFT_TOKENS, (1, 2), SIZE, **variants)


def with_ids(head: Eagle3Head) -> Eagle3Head:
    head.d2t.copy_(draft_ids() - torch.arange(NUM_DRAFT_TOKENS))
    return head


def build_medusa(num_outputs: int) -> MedusaHead:
    head = MedusaHead(
        MedusaConfig(SIZE, VOCABULARY, NUM_DRAFT_TOKENS, DEPTH, 2, num_outputs, LAST, bias=True)
    )
    head.token_map.copy_(draft_ids())
    return head


def build_redrafter() -> ReDrafterHead:
    head = ReDrafterHead(ReDrafterConfig(SIZE, VOCABULARY, NUM_DRAFT_TOKENS, 2, LAST))
    head.token_map.copy_(draft_ids())
    return head


def last_hidden_states(token_ids: list[int]) -> torch.Tensor:
    """Of the stock model: [n, hidden_size]."""
    return tiny_llama(0, attention="eager").model(torch.tensor([token_ids])).last_hidden_state[0]


def eagle_logits(head: EagleHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """After a text and a chain drafted after it, by transformers' layer: [V]."""
    target = tiny_llama(0, attention="eager")
    head.config.layer._attn_implementation = "eager"
    layer = LlamaDecoderLayer(head.config.layer, 0)
    layer.input_layernorm = nn.Identity()
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


def unrolled_logits(head: Eagle3Head, text: list[int], drafted: list[int]) -> torch.Tensor:
    """After a text and what was drafted after it, by the code that trains the head, from one pass
    of the target over the text: [draft_vocab_size]."""
    num_steps = len(drafted) + 1
    if isinstance(head, PEagleHead):  # which makes all of a draft in one pass
        drafted = []
    loaded = as_loaded(tiny_llama(0))
    target = ModelRunner(loaded, num_slots=1, max_len=128, taps=head.config.taps)
    target.forward([Segment(0, 0, np.array(text[:-1], dtype=np.int32), 1)])
    tokens, unused = torch.tensor([text + drafted]), [torch.zeros(1)] * 5
    batch = TrainingBatch(tokens, target.features[0][None], *unused)
    *_, normed = unroll(head, loaded.model.get_input_embeddings().weight, batch, num_steps)
    return head.lm_head(normed[0, -1])


def medusa_logits(head: MedusaHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """[draft_vocab_size]."""
    depth = len(drafted)
    x, weights = last_hidden_states(text[:-1])[-1], head.state_dict()
    for layer in range(head.config.num_layers):
        name = f"blocks.{depth}.layers.{layer}"
        x = x + nn.functional.silu(weights[f"{name}.weight"] @ x + weights[f"{name}.bias"])
    output = depth if f"lm_heads.{depth}.weight" in weights else 0
    return weights[f"lm_heads.{output}.weight"] @ x


def redrafter_logits(head: ReDrafterHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """By the paper's formulas: [draft_vocab_size]."""
    table = tiny_llama(0, attention="eager").get_input_embeddings().weight
    w, silu = head.state_dict(), nn.functional.silu
    state = table[text[-1]]
    for token in drafted:
        state = silu(w["rnn_u.weight"] @ state + w["rnn_w.weight"] @ table[token] + w["rnn_u.bias"])
    x = w["join.weight"] @ torch.cat([last_hidden_states(text[:-1])[-1], state]) + w["join.bias"]
    for layer in range(head.config.num_layers):
        x = x + silu(w[f"blocks.{layer}.weight"] @ x + w[f"blocks.{layer}.bias"])
    return w["lm_head.weight"] @ x


EAGLE = HeadCase("eagle", build_eagle, eagle_logits)
P_EAGLE = HeadCase("p-eagle", build_p_eagle, unrolled_logits, is_one_pass=True)
MEDUSA = HeadCase("medusa", lambda: build_medusa(1), medusa_logits, is_one_pass=True)
MEDUSA_OUTPUTS = HeadCase(
    "medusa with an output for each head",
    lambda: build_medusa(DEPTH),
    medusa_logits,
    is_one_pass=True,
)
REDRAFTER = HeadCase("redrafter", build_redrafter, redrafter_logits)
OF_EAGLE3 = [
    HeadCase(" ".join(["eagle3", *variants]), partial(build_eagle3, *variants), unrolled_logits)
    for variants in (
        [],
        ["norm_before_residual"],
        ["norm_before_fc"],
        ["fc_norm"],
        ["norm_output"],
    )
]


def make_core(
    case: HeadCase,
    pause: float = 0.4,
    num_blocks: int = 24,
    seed: int = 0,
    max_width: int = 1,
    max_draft_tokens: int = 5,
) -> EngineCore:
    head = case.make()
    target = ModelRunner(as_loaded(tiny_llama(0)), num_slots=4, max_len=128, taps=head.config.taps)
    executor = LiveExecutor(
        target, (head_drafter(head, target, name="head", num_slots=4, is_rounded=False),)
    )
    return core_of(executor, AnyLength(seed, pause, max_width), num_blocks, max_draft_tokens)
