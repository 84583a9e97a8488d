"""Rollouts: rounds of many prompts at once, each round with other weights.

    python examples/rollouts.py --model MODEL            # vLLM with the plugin, in vLLM's environment
    python examples/rollouts.py --model MODEL --embedded # the embedded engine

MODEL is a folder in Hugging Face's format. A trainer writes each round's weights; here a stand-in
adds noise to them. With --check every round is played without speculation, too: the greedy texts
must be the same.
"""  # noqa: E501

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROMPTS = [
    "1, 2, 3, 1, 2, 3, 1, 2,",
    "The rain in Spain",
    "def add(a, b):\n    return a + b\n\ndef add(",
    "Once upon",
]
NOISE = 0.02  # of a weight's own deviation


class VLLM:
    """vLLM's offline engine, with the plugin or without speculation. It lives through all
    rounds."""

    def __init__(self, model: Path, speculates: bool):
        from vllm import LLM, SamplingParams

        options = {}
        if speculates:
            options = {
                "scheduler_cls": "smartspec.vllm_plugin.Scheduler",
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 5,
                    "prompt_lookup_max": 4,
                },
            }
        self._llm, self._params = (
            LLM(str(model), dtype="float32", enforce_eager=True, **options),
            SamplingParams,
        )

    def use(self, model: Path) -> None:
        """Take the weights in this folder."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(model)})
        # KV and acceptance are of the old weights. The plugin hears this call, forgets acceptance,
        # and keeps costs.
        self._llm.reset_prefix_cache()

    def generate(self, prompts: list[str], max_tokens: int) -> list[tuple[str, int]]:
        """Text and number of tokens of each answer."""
        params = self._params(max_tokens=max_tokens, temperature=0.0)
        answers = [each.outputs[0] for each in self._llm.generate(prompts, params, use_tqdm=False)]
        return [(answer.text, len(answer.token_ids)) for answer in answers]


class Embedded:
    """The embedded engine, made anew for each round: acceptance begins anew, and costs are read
    from the cache."""

    def __init__(self, model: Path, speculates: bool):
        self._policy, self._llm = "goodput" if speculates else "off", None
        self.use(model)

    def use(self, model: Path) -> None:
        from smartspec import LLM

        if self._llm is not None:
            self._llm.close()
        self._llm = LLM(str(model), policy=self._policy, dtype="float32", max_batch=64)

    def generate(self, prompts: list[str], max_tokens: int) -> list[tuple[str, int]]:
        from smartspec import SamplingParams

        answers = self._llm.generate(
            prompts, SamplingParams(max_tokens=max_tokens, temperature=0.0)
        )
        return [(answer.text, len(answer.token_ids)) for answer in answers]


def train(model: Path, seed: int) -> None:
    """Stand in for a trainer: change the weights in the folder. The file is replaced: an engine may
    have it open."""
    file, random = model / "model.safetensors", torch.Generator().manual_seed(seed)
    weights = {}
    for name, old in load_file(file).items():
        noise = (
            torch.randn(old.shape, generator=random)
            if old.is_floating_point() and old.numel() > 1
            else 0.0
        )
        weights[name] = (old + NOISE * old.float().std() * noise).to(old.dtype)
    save_file(weights, file.with_suffix(".new"), metadata={"format": "pt"})
    os.replace(file.with_suffix(".new"), file)


def play(
    engine_class: type, model: Path, speculates: bool, options: argparse.Namespace
) -> list[list[str]]:
    """The texts of each round."""
    prompts = [f"{number}. {PROMPTS[number % len(PROMPTS)]}" for number in range(options.prompts)]
    with tempfile.TemporaryDirectory() as folder:
        current = Path(shutil.copytree(model, Path(folder) / "model"))
        engine, texts = engine_class(current, speculates), []
        for number in range(options.rounds):
            if number:
                train(current, number)
                engine.use(current)
            began = time.perf_counter()
            answers = engine.generate(prompts, options.max_tokens)
            seconds = time.perf_counter() - began
            speed = sum(tokens for _, tokens in answers) / seconds
            print(
                f"{'SmartSpec' if speculates else 'off'}, round {number}: {speed:.0f} tokens/s",
                flush=True,
            )
            texts.append([text for text, _ in answers])
        return texts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    engine_class = Embedded if options.embedded else VLLM
    texts = play(engine_class, options.model, True, options)
    if any(texts[number] == texts[number + 1] for number in range(options.rounds - 1)):
        raise SystemExit(
            "error: a round has the texts of the one before: its weights were not taken"
        )
    if options.check:
        if texts != play(engine_class, options.model, False, options):
            raise SystemExit("error: the texts are others without speculation")
        print(f"all {options.rounds * options.prompts} texts are the same without speculation")


if __name__ == "__main__":
    main()
