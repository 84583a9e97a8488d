"""Tiny models that draft for themselves, by their first layers or from a window of their text."""

import numpy as np
from tiny_engine import RandomPlans, core_of, run
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from lab.drafters.self_draft import SelfDraft
from lab.heads.exits import Exit
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention.ragged import ATTENTION_NAME
from smartspec.engine.drafting.source import DrafterSource
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.drafter_kinds import prepare_drafter
from smartspec.engine.runtime.executor import LiveExecutor

WINDOW = 6  # of texts of more than 36 tokens


class Lengths(RandomPlans):
    """Drafts of random lengths, of which a random part is verified."""

    def cut(self, plan, drafted):
        return self.random.integers(0, drafted.lengths + 1)


def model_of_little_attention(attention: str = ATTENTION_NAME):
    """So that drafts that read a window are right at times."""
    model = tiny_llama(0, attention)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= 0.02
    return model


def model_of_a_weak_layer():
    """Whose upper layer adds little, as training with early exits makes it, so that drafts of the
    lower one are right at times."""
    model = tiny_llama(0)
    for linear in (model.model.layers[-1].self_attn.o_proj, model.model.layers[-1].mlp.down_proj):
        linear.weight *= 0.3
    return model


def window_core(
    num_blocks: int = 100, seed: int = 0, pause: float = 0.2, num_slots: int = 4
) -> EngineCore:
    loaded = as_loaded(model_of_little_attention())
    target = ModelRunner(loaded, num_slots=num_slots, max_len=128)
    executor = LiveExecutor(target, (SelfDraft(target, WINDOW),))
    controller = Lengths(seed, pause)
    return core_of(executor, controller, num_blocks, max_batched_tokens=4 * num_slots)


def exit_core(num_blocks: int = 100, seed: int = 0, pause: float = 0.2) -> EngineCore:
    target = ModelRunner(as_loaded(model_of_a_weak_layer()), num_slots=4, max_len=128)
    executor = LiveExecutor(target, (Exit(target, target.loaded.num_layers - 1),))
    return core_of(executor, Lengths(seed, pause), num_blocks)


def prompts(num: int) -> list[list[int]]:
    """Some of which begin alike and one of which is short."""
    random = np.random.default_rng(5)
    shared = random.integers(0, VOCABULARY, 20).tolist()
    return [shared + random.integers(0, VOCABULARY, 7 * i).tolist() for i in range(num)]


def generate(
    core: EngineCore, of: list[list[int]], max_tokens: int = 30, grammar=None, **params
) -> list[Request]:
    options = SamplingParams(max_tokens=max_tokens, **params)
    requests = [Request(i, prompt, options, seed=i, grammar=grammar) for i, prompt in enumerate(of)]
    return run(core, requests)


def made(name: str) -> SelfDraft | Exit:
    """The drafter of that name for a model of two layers and texts of 128 tokens."""
    target, sizes = as_loaded(tiny_llama(0)), {"num_slots": 1, "max_len": 128}
    source = DrafterSource(name, "tiny", target, as_loaded, **sizes, max_draft_tokens=4)
    return prepare_drafter(source).make(ModelRunner(target, **sizes))
