"""The heads of the lab on a tiny model, see head_cases."""

import torch
from head_cases import DEPTH, LAST, NUM_DRAFT_TOKENS, SIZE, HeadCase, draft_ids, last_hidden_states
from tiny_models import VOCABULARY, tiny_llama

from lab.heads.medusa.head import MedusaConfig, MedusaHead
from lab.heads.redrafter.head import ReDrafterConfig, ReDrafterHead


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


def medusa_logits(head: MedusaHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """[draft_vocab_size]."""
    depth = len(drafted)
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


MEDUSA = HeadCase("medusa", lambda: build_medusa(1), medusa_logits, is_one_pass=True)
MEDUSA_OUTPUTS = HeadCase(
    "medusa with an output for each head",
    lambda: build_medusa(DEPTH),
    medusa_logits,
    is_one_pass=True,
)
REDRAFTER = HeadCase("redrafter", build_redrafter, redrafter_logits)
