"""Heads of other kinds than EAGLE-3 on a tiny model: made at random, and what plain torch makes of
them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tiny_engine import AnyLength, core_of
from tiny_models import SHAPE, VOCABULARY, as_loaded, tiny_llama
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from lab.heads.eagle.head import EagleConfig, EagleHead
from lab.heads.p_eagle.head import PEagleHead
from lab.train.start import head_config
from lab.train.unroll import TrainingBatch, unroll
from smartspec.core.engine_core import EngineCore
from smartspec.engine.drafting.head.eagle3 import HeadConfig
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
            torch.nn.init.normal_(parameter, std=0.3)
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
    layer = head_config(tiny_llama().config, NUM_DRAFT_TOKENS).layer
    head = PEagleHead(HeadConfig(layer, NUM_DRAFT_TOKENS, (1, 2), SIZE, fc_norm=True), 7, DEPTH)
    head.d2t.copy_(draft_ids() - torch.arange(NUM_DRAFT_TOKENS))
    return head


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


def p_eagle_logits(head: PEagleHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """By the code that trains it: [draft_vocab_size]."""
    # By hooks, as transformers gives the last layer's output only after the final norm.
    model, captured = tiny_llama(0, attention="eager"), []
    for layer in model.model.layers:
        layer.register_forward_hook(
            lambda module, args, output: captured.append(
                output[0] if isinstance(output, tuple) else output
            )
        )
    model(torch.tensor([text[:-1]]))
    features = torch.cat([output.reshape(1, -1, SIZE) for output in captured], dim=-1)
    nothing = torch.zeros(1)
    batch = TrainingBatch(
        torch.tensor([text]), features, nothing, nothing, nothing, nothing, nothing
    )
    *_, normed = unroll(head, model.get_input_embeddings().weight, batch, len(drafted) + 1)
    return head.lm_head(normed[0, -1])


EAGLE = HeadCase("eagle", build_eagle, eagle_logits)
P_EAGLE = HeadCase("p-eagle", build_p_eagle, p_eagle_logits, is_one_pass=True)


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
