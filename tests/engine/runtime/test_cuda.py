"""The engine on a CUDA device, `make test-gpu`: models load, texts are those without drafts and
those of the CPU, and a pass does not wait for the device.

Models are tiny and random, so it takes no file and no network. Greedy texts of random models soon
go in circles, which drafters find.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from saved_models import LONGROPE, save_model
from test_on_device import of_all_kinds
from tiny_models import tiny_llama, tiny_mistral, tiny_runner

from smartspec import LLM, SamplingParams
from smartspec.engine.attention.kv_cache import KVCache
from smartspec.engine.models.load import load_model
from smartspec.llm import GenerationOutput

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
FULL, SLIDING = "full_attention", "sliding_attention"
# else attention hardly shows in the logits
LARGE = {"initializer_range": 0.3, "max_position_embeddings": 512}
OF_LONGROPE = {
    "rope_parameters": LONGROPE,
    "sliding_window": None,
    "original_max_position_embeddings": 48,
}
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=64, temperature=0.4, seed=5, ignore_eos=True)


@pytest.mark.parametrize(
    ("model_type", "changes", "windows", "length"),
    [
        ("llama", {}, (None, None, None), 512),
        ("mistral", {"sliding_window": 9}, (9, 9, 9), 512),
        (
            "gemma3_text",
            {"sliding_window": 9, "layer_types": [SLIDING, FULL, SLIDING]},
            (9, None, 9),
            512,
        ),
        ("phi3", OF_LONGROPE, (None, None, None), 48),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_load(tmp_path, dtype, model_type, changes, windows, length):
    """Each is probed, and compared with the stock model there."""
    save_model(tmp_path, model_type, **LARGE, **changes)
    loaded = load_model(str(tmp_path), device=str(DEVICE), dtype=dtype)
    assert (loaded.windows, loaded.max_model_len) == (windows, length)
    torch.cuda.synchronize()  # raises where an assertion of the device has failed


def prompts() -> list[list[int]]:
    """More than are served at a time, some of which begin alike."""
    random = np.random.default_rng(1)
    shared = random.integers(3, 32, 20).tolist()
    return [shared[: 20 * (i % 2)] + random.integers(3, 32, 5 + 3 * i).tolist() for i in range(12)]


def answers(
    folder: Path, params: SamplingParams, device: torch.device, **options
) -> list[GenerationOutput]:
    limits = {"max_batch": 8, "max_model_len": 256, "datastore": "none"}
    with LLM(str(folder), device=str(device), dtype="float32", **limits, **options) as llm:
        return llm.generate(prompts(), params)


@pytest.fixture(scope="module", params=["llama", "mistral"])
def plain(request, tmp_path_factory) -> tuple[Path, dict[SamplingParams, list[list[int]]]]:
    """A model and its texts without drafts."""
    folder = save_model(tmp_path_factory.mktemp("model"), request.param, **LARGE, sliding_window=40)
    outputs = {
        params: answers(folder, params, DEVICE, policy="off") for params in (GREEDY, SAMPLED)
    }
    return folder, {
        params: [output.token_ids for output in found] for params, found in outputs.items()
    }


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_texts_are_those_of_the_cpu(plain, params):
    folder, texts = plain
    assert [
        each.token_ids for each in answers(folder, params, torch.device("cpu"), policy="off")
    ] == texts[params]


@pytest.mark.parametrize(
    ("drafter", "policy", "params"),
    [
        ("prompt-lookup", "fixed:4", GREEDY),
        ("prompt-lookup", "fixed:4", SAMPLED),
        ("prompt-lookup", "goodput", GREEDY),
        ("recycling", "goodput", SAMPLED),
        ("recycling", "fixed:3", GREEDY),
        ("MODEL", "fixed:3", GREEDY),
    ],
)
def test_texts_are_those_without_drafts(plain, drafter, policy, params):
    """Drafts of every kind; MODEL: the target beside itself as draft model."""
    folder, texts = plain
    name = str(folder.parent / folder.name / ".") + "/." if drafter == "MODEL" else drafter
    found = answers(folder, params, DEVICE, drafters=(name,), policy=policy)
    assert [each.token_ids for each in found] == texts[params]
    assert sum(each.num_accepted_tokens for each in found) > 0


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_mistral])
def test_a_pass_does_not_wait_for_the_device(make_model):
    """From its first operation on to its logits: of prompts, trees, chains and sparse windows."""
    runner = tiny_runner(make_model().to(DEVICE), max_len=64)
    segments = of_all_kinds()
    expected = runner.forward(segments)
    order, ordered = runner._placed(segments)
    token_ids, plan = runner._plan(ordered)
    wanted = runner._wanted(ordered, order, len(token_ids))
    # What one layer needs of the batch is copied when it first attends; all others find it there.
    plan.masks(
        runner.loaded.windows[0],
        torch.float32,
        runner.loaded.num_heads // runner.loaded.num_kv_heads,
    )
    with torch.inference_mode():
        torch.cuda.set_sync_debug_mode("error")
        try:
            logits, _ = runner._computed(token_ids, plan, wanted, ())
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(logits, expected)


def test_kv_that_does_not_fit_is_said_with_the_remedy():
    sizes = {
        "num_layers": 128,
        "num_slots": 256,
        "num_kv_heads": 8,
        "max_len": 131072,
        "head_dim": 128,
    }
    with pytest.raises(ValueError, match="lower max_model_len or max_batch"):
        KVCache(**sizes, dtype=torch.float32, device=DEVICE)
    torch.cuda.synchronize()
