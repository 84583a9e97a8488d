"""Observations of an engine whose step times and acceptance are known."""

import numpy as np

from smartspec.observation.records import DraftOutcome, Observation, StepSize

SETUP = {
    "engine": "vllm", "version": "0.33.0", "model": "toy-8b", "method": "eagle3",
    "draft_model": "head", "dtype": "bf16", "quantization": "None", "device": "NVIDIA H100",
    "platform": "gpu", "parallel": [1], "has_passes": True, "longest": 5, "max_requests": 256,
    "max_batched_tokens": 8192,
}  # fmt: skip
PROMPT, ANSWER = 100, 200
BEND = 256


def seconds_of(fed: float, requests: int, passes: int, has_prefill: bool = False) -> float:
    """Bound by memory up to BEND tokens, beyond it by arithmetic."""
    times = 6e-3 + 4e-6 * fed + 24e-6 * max(fed - BEND, 0) + 8e-6 * requests + 4e-4 * passes
    return times + 1e-3 * has_prefill


def observe(
    cells, *, rate=0.7, steps=400, setup=None, noise=0.02, classes=None, seed=0
) -> Observation:
    """cells: (requests, draft length) that were served. rate: acceptance of a draft token. classes:
    rate by class, with equally many tokens each."""
    rng, found = np.random.default_rng(seed), Observation({**SETUP, **(setup or {})})
    for requests, length in cells:
        rates = {"": rate} if classes is None else classes
        emitted_by_class = {name: sum(p**d for d in range(length + 1)) for name, p in rates.items()}
        shares = np.array([1 / each for each in emitted_by_class.values()])
        shares /= shares.sum()
        mean = float(shares @ np.array(list(emitted_by_class.values())))
        arriving = requests * mean / ANSWER
        sizes = [
            _step(
                requests,
                length,
                mean,
                int(rng.poisson(arriving)),
                float(np.exp(noise * rng.standard_normal())),
            )
            for _ in range(steps)
        ]
        found.add_steps([length] * steps, sizes)
        for share, (name, p) in zip(shares, rates.items(), strict=True):
            rows = share * steps * requests
            chances = [p**d * (1 if d == length else 1 - p) for d in range(length + 1)]
            found.add_outcomes(
                (DraftOutcome(name, length, length, d), round(rows * chance))
                for d, chance in enumerate(chances)
            )
        found.arrivals.requests += sum(size.prefills for size in sizes)
        found.arrivals.prompt_tokens += PROMPT * sum(size.prefills for size in sizes)
        found.arrivals.seconds += sum(size.seconds for size in sizes)
    return found


def true_speed(requests: int, length: int, rate: float = 0.7, *, off: bool = False) -> float:
    """Tokens per second of a long closed loop."""
    mean = sum(rate**d for d in range(length + 1))
    arriving, passes = requests * mean / ANSWER, 0 if off else max(length, 1)
    counts = np.random.default_rng(5).poisson(arriving, 20_000)
    fed = [(max(requests - n, 0)) * (1 + length) + n * PROMPT for n in counts]
    times = [seconds_of(f, requests, passes, bool(n)) for f, n in zip(fed, counts, strict=True)]
    return float(np.mean([max(requests - n, 0) * mean + n for n in counts]) / np.mean(times))


def _step(requests: int, length: int, mean: float, prefills: int, factor: float) -> StepSize:
    prefills = min(prefills, requests)
    decoding = requests - prefills
    fed = decoding * (1 + length) + prefills * PROMPT
    return StepSize(
        seconds=factor * seconds_of(fed, requests, max(length, 1), prefills > 0),
        requests=requests,
        decoding=decoding,
        context_tokens=200 * requests,
        fed_tokens=fed,
        verified_tokens=decoding * length,
        emitted_tokens=decoding * mean + prefills,
        prefills=prefills,
        prefill_tokens=prefills * PROMPT,
        passes=max(length, 1),
    )
