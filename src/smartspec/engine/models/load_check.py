"""The check that a loaded model computes in ragged, cached passes what transformers computes under
eager attention.

Every model is checked, on its own weights, before it serves: transformers' models differ in too
many ways to be told apart by their configuration. Before anything is replaced the stock model
computes two short texts, its sliding windows made so small that the texts are longer; what was made
of it then computes them in chunks, beside each other, with wrong drafts rolled back.
"""

import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from smartspec.engine.attention.probe import PROBE_POSITIONS, AttentionCall, probe
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.models.quantized import unpacked

TEXT_LENGTHS = (36, 18)
SMALL_WINDOW = 8
NUM_WRONG = 3
# (text, first token, end, whether wrong drafts follow) of each segment of each pass; text t lies in
# slot 2 - t.
PASSES = (
    [(0, 0, 17, False)],
    [(0, 17, 30, False), (1, 0, 13, False)],
    [(0, 30, 31, True), (1, 13, 14, False)],
    [(0, 31, 35, False), (1, 14, 15, True)],
    [(0, 35, 36, False), (1, 15, 18, False)],
)

# Perplexity may grow by that much when activations are rounded to 8 bits. On text that is drawn
# from a model p, what another model q of it has for a perplexity is exp(KL(p, q)) of p's.
MAX_PERPLEXITY = 1.005
PLAIN_TEXT = """The harbour was quiet in the early morning. Three boats had come back with 240 kg of fish, and the
buyers stood in a circle, talking about the price. "It is 15% less than last year," said Anna, who had kept the books
since 1998. Her brother wrote a short program for it:

def average(prices: list[float]) -> float:
    total = sum(prices)
    return total / len(prices) if prices else 0.0

What does it return for an empty list? Zero, because there is nothing to divide. First, count the boxes; then weigh
each of them; finally, write the sum into the book and send a copy to the office in the city."""  # noqa: E501


@dataclass(frozen=True)
class Reference:
    """The results of the stock model."""

    texts: list[np.ndarray]  # int32 [n] each
    logits: list[torch.Tensor]  # [n, vocabulary] of each by the stock model
    windows: tuple[int | None, ...]  # those they were made with


def take_reference(
    model: nn.Module, vocab_size: int, max_model_len: int, calls: list[AttentionCall]
) -> Reference:
    """Return what the stock model computes. calls: of a probe of it. May raise whatever the model
    raises."""
    texts = _texts(model, vocab_size, max_model_len)
    ours = model.config._attn_implementation
    with _small_windows(model), torch.inference_mode():
        windows = layer_windows(calls)
        if any(windows):
            windows = layer_windows(probe(model)[1])
        model.set_attn_implementation("eager")
        inputs = [torch.from_numpy(text.astype(np.int64))[None].to(model.device) for text in texts]
        with unpacked(model):
            logits = [
                model(input_ids=token_ids, use_cache=False).logits[0].float()
                for token_ids in inputs
            ]
    model.set_attn_implementation(ours)
    return Reference(texts, logits, windows)


def find_difference(loaded: LoadedModel, reference: Reference) -> str | None:
    """The difference, by more than rounding, of the loaded model's ragged passes from the
    reference; None for none."""
    try:
        error = _ragged_error(loaded, reference)
    except Exception as failure:  # modules are transformers': they may raise anything
        return f"its pass over several requests fails with {type(failure).__name__}: {failure}"
    tolerance = rounding_tolerance(loaded.coarsest_dtype)
    return (
        None
        if error <= tolerance
        else f"its logits differ by {error:.1e} of their spread, not {tolerance:.0e}"
    )


def rounding_tolerance(dtype: torch.dtype) -> float:
    """Half the digits of dtype: rounding adds up over layers, a mistake in attention shows in the
    leading digits."""
    return torch.finfo(dtype).eps ** 0.5


@torch.inference_mode()
def predictions_of_text(loaded: LoadedModel) -> torch.Tensor:
    """Logarithms of the probabilities of every token after each of a short text, [n,
    vocabulary]."""
    known = [
        token for token in loaded.tokenizer(PLAIN_TEXT)["input_ids"] if token < loaded.vocab_size
    ]
    tokens = np.array(known[: loaded.max_model_len] or [0], dtype=np.int32)
    runner = ModelRunner(loaded, num_slots=1, max_len=len(tokens))
    return runner.forward([Segment(0, 0, tokens, len(tokens))]).float().log_softmax(dim=-1)


def rounding_harm(before: torch.Tensor, after: torch.Tensor) -> str | None:
    """The fault of predictions [n, vocabulary] that are no longer what they were; None where their
    divergence stands for at most MAX_PERPLEXITY."""
    each = torch.where(before > -torch.inf, before.exp() * (before - after), 0.0).sum(dim=-1)
    growth = float(each.mean().exp())
    return (
        None if growth <= MAX_PERPLEXITY else f"the perplexity of a text grows by {growth - 1:.1%}"
    )


def layer_windows(calls: list[AttentionCall]) -> tuple[int | None, ...]:
    """Sliding window of every layer, None where it has none."""
    return tuple(call.window for call in sorted(calls, key=lambda call: call.module.layer_idx))


def independent_length(
    model: nn.Module, max_model_len: int, logits: torch.Tensor, calls: list[AttentionCall]
) -> int:
    """Up to which length, at most max_model_len, no token's position changes what other tokens
    compute.

    logits, calls: what a probe of the model gave.

    transformers chooses some rotary factors (longrope, dynamic) by the largest position of the
    whole pass, so that one request beyond a limit would change its neighbours, and a draft its own
    request.
    """
    expected = _rows_apart(logits, calls)

    def differs(length: int) -> bool:
        return not all(map(_close, _rows_apart(*probe(model, length - 1)), expected))

    first = PROBE_POSITIONS[-1] + 1
    if max_model_len <= first or not differs(max_model_len):
        return max_model_len
    length = first - 1 + bisect.bisect_left(range(first, max_model_len), True, key=differs)
    probe(model)  # dynamic factors stay grown until a short pass
    return length


def _rows_apart(logits: torch.Tensor, calls: list[AttentionCall]) -> list[torch.Tensor]:
    """Queries and keys in every layer, and the logits, of all tokens but the last: the heads come
    first."""
    tensors = [tensor[0] for call in calls for tensor in (call.query, call.key)]
    return [tensor[..., :-1, :] for tensor in (*tensors, logits)]


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= rounding_tolerance(b.dtype) * b.abs().max())


def _texts(model: nn.Module, vocab_size: int, max_model_len: int) -> list[np.ndarray]:
    """Random tokens; no padding tokens, which some models count differently."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    usable = np.array([token for token in range(vocab_size) if token != padding], dtype=np.int32)
    random = np.random.default_rng(0)
    return [random.choice(usable, min(length, max_model_len)) for length in TEXT_LENGTHS]


def _ragged_error(loaded: LoadedModel, reference: Reference) -> float:
    """The largest distance of the logits of all but a few tokens from the reference's, in units of
    their spread.

    A few: where two experts are nearly even, rounding decides to which a token goes; in a coarse
    dtype that happens to many tokens. What is wrong in an architecture shows in most of them.
    """
    runner = ModelRunner(
        replace(loaded, windows=reference.windows), num_slots=3, max_len=len(reference.texts[0])
    )
    pairs = [pair for segments in PASSES for pair in _run_pass(runner, reference, segments)]
    errors = torch.cat([_row_errors(logits, expected) for logits, expected in pairs])
    return float(errors.quantile(0.9 if loaded.coarsest_dtype == torch.float32 else 0.5))


def _run_pass(
    runner: ModelRunner, reference: Reference, parts: list[tuple[int, int, int, bool]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits [n, vocabulary] and what they should be, of every segment of the pass."""
    segments, expected = [], []
    for text, start, end, has_wrong in parts:
        tokens = reference.texts[text][start:end]
        if not len(tokens):
            continue
        wrong = (
            reference.texts[text][:NUM_WRONG][: runner.max_len - end] if has_wrong else tokens[:0]
        )
        # Also without drafts not every row's logits are needed, as in prefill.
        num_wanted = (len(tokens) + 1) // 2
        segments.append(
            Segment(2 - text, start, np.concatenate([tokens, wrong]), num_wanted + len(wrong))
        )
        expected.append(
            reference.logits[text][start + len(tokens) - num_wanted : start + len(tokens)]
        )
    sizes = [segment.num_logits for segment in segments]
    logits = runner.forward(segments).float().split(sizes) if segments else []
    return [(rows[: len(wanted)], wanted) for rows, wanted in zip(logits, expected, strict=True)]


def _row_errors(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Root mean square difference of each token's logits in units of their spread, [n].

    Logits that are equal count as such even where they are infinite, as those of masked tokens are.
    """
    finite = expected.where(expected.isfinite(), 0.0)
    spread = (finite - finite.mean(dim=-1, keepdim=True)).norm(dim=-1)
    difference = torch.where(logits == expected, 0.0, logits - expected).norm(dim=-1)
    return torch.nan_to_num(difference / spread, nan=float("inf"), posinf=float("inf"))


@contextmanager
def _small_windows(model: nn.Module) -> Iterator[None]:
    """Inside the block, sliding windows of the model are at most SMALL_WINDOW tokens, as far as
    they can be found."""
    owners = {
        id(owner): owner
        for module in model.modules()
        for owner in (module, getattr(module, "config", None))
    }
    changed = []
    for owner in owners.values():
        for name, value in list(vars(owner).items()) if owner is not None else []:
            if "window" in name and type(value) is int and value > SMALL_WINDOW:
                changed.append((owner, name, value))
                setattr(owner, name, SMALL_WINDOW)
    try:
        yield
    finally:
        for owner, name, value in changed:
            setattr(owner, name, value)
