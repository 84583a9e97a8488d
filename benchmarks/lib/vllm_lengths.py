"""What draft lengths are worth in vLLM with ngram drafts, around a stand-in for its scheduler.

The plugin itself decides. Texts are real: greedy answers of the default model, made by our engine
and kept in a file. So are drafts: vLLM's rule of lookup on these texts. Time is virtual: the
scheduler's own work takes none.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
from rich.table import Table

from lib.commands import check_task, prompts_by_task, table_of
from lib.vllm_lookup import LONGEST, lookup
from smartspec.bench.report import write_json
from smartspec.control import CostCurve

OURS = "smartspec"
cached_lookup = cache(lookup)
LONGEST_PROMPT = 800  # tokens


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and of its greedy answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class TextEngine:
    """vLLM's engine loop around a scheduler, with known texts and virtual time in seconds. noise:
    standard deviation of the log of a pass's time."""

    def __init__(self, scheduler, curve: CostCurve, noise: float):
        (
            scheduler.max_num_running_reqs,
            scheduler.max_num_scheduled_tokens,
            scheduler.max_model_len,
        ) = 64, 4096, 2048
        scheduler.cache_config.num_gpu_blocks = 100_000
        self._scheduler, self._curve, self._noise = scheduler, curve, noise
        self._random = np.random.default_rng(0)
        self._texts: dict[str, tuple[int, ...]] = {}
        self.now = 0.0
        if speculation := getattr(scheduler, "speculation", None):
            scheduler.dynamic_sd_lookup = [scheduler.num_spec_tokens] * 65
            speculation._clock = lambda: self.now

    def serve(self, texts: list[Text], at_once: int) -> float:
        """Tokens per second."""
        began, waiting, scheduler = self.now, list(texts), self._scheduler
        while waiting or scheduler.has_unfinished_requests():
            while waiting and len(scheduler.requests) < at_once:
                self._add(waiting.pop(0))
            self._step()
        return sum(len(text.answer) for text in texts) / (self.now - began)

    def _add(self, text: Text) -> None:
        from vllm.schedulers import Request

        name = str(len(self._texts))
        self._texts[name] = text.prompt + text.answer
        parameters = SimpleNamespace(extra_args=None)
        self._scheduler.add_request(Request(name, list(text.prompt), len(text.answer), parameters))

    def _step(self) -> None:
        from vllm.schedulers import ModelRunnerOutput
        from vllm.v1.outputs import DraftTokenIds

        output, scheduler = self._scheduler.schedule(), self._scheduler
        sampled, sizes = [], []
        for name, fed in output.num_scheduled_tokens.items():
            request, text = scheduler.requests[name], self._texts[name]
            draft = output.scheduled_spec_decode_tokens.get(name, [])
            end = request.num_computed_tokens - len(draft)  # of the text that is known
            wrong = [
                n for n, token in enumerate(draft) if end + n >= len(text) or token != text[end + n]
            ]
            accepted = wrong[0] if wrong else len(draft)
            sampled.append(
                list(text[end : end + accepted + 1]) if end >= request.num_prompt_tokens else []
            )
            sizes.append(
                (
                    fed,
                    request.num_computed_tokens,
                    fed * (request.num_computed_tokens - (fed - 1) / 2),
                )
            )
        fed_tokens, context, attended = np.sum(sizes, axis=0).tolist()
        seconds = self._curve.seconds(fed_tokens, context, len(sizes), attended)
        self.now += float(seconds) * float(np.exp(self._noise * self._random.standard_normal()))
        rows = {name: row for row, name in enumerate(output.num_scheduled_tokens)}
        scheduler.update_from_output(output, ModelRunnerOutput(rows, sampled))
        decoding = [
            r for r in scheduler.requests.values() if r.num_tokens == r.num_computed_tokens + 1
        ]
        drafts = {
            r.request_id: list(cached_lookup(tuple(r.tokens))[: scheduler.num_spec_tokens])
            for r in decoding
        }
        scheduler.update_draft_token_ids(DraftTokenIds(list(drafts), list(drafts.values())))


def engine(policy: str, folder: Path, curve: CostCurve, noise: float) -> TextEngine:
    """Of a policy: off, fixed:K or ours, which begins with what the folder holds of step times."""
    from toy_engine import make_config
    from vllm.schedulers import Scheduler as StockScheduler

    from smartspec.vllm_plugin import Scheduler

    longest = (
        LONGEST if policy == OURS else int(policy.removeprefix("fixed:")) if policy != "off" else 0
    )
    config = make_config(folder, num_speculative_tokens=longest, settings={"metrics_seconds": 1e9})
    return TextEngine((Scheduler if policy == OURS else StockScheduler)(config), curve, noise)


def read_texts(
    path: Path, prompts: Path | None, tasks: list[str], per_task: int, max_tokens: int
) -> dict:
    """By task, with answers of up to max_tokens. What is not in the file, or of other settings, is
    made and kept."""
    settings = {"prompts": str(prompts), "per_task": per_task, "max_tokens": max_tokens}
    kept = json.loads(path.read_text()) if path.exists() else {}
    texts = kept["texts"] if kept.get("settings") == settings else {}
    if missing := [task for task in tasks if task not in texts]:
        path.parent.mkdir(parents=True, exist_ok=True)
        texts |= make_texts(prompts, missing, per_task, max_tokens)
        write_json(path, {"settings": settings, "texts": texts})
    return {task: [Text(*map(tuple, text)) for text in texts[task] if text[1]] for task in tasks}


def make_texts(path: Path | None, tasks: list[str], per_task: int, max_tokens: int) -> dict:
    """By task, token ids of prompts and greedy answers."""
    from lib.drafter_tokens import token_ids_of
    from smartspec import LLM, SamplingParams

    by_task, texts = prompts_by_task(path), {}
    with LLM(drafters=("prompt-lookup",), max_model_len=2048) as llm:
        for task in tasks:
            check_task(task, by_task)
            chats = [token_ids_of(llm.tokenizer, prompt) for prompt in by_task[task]]
            chosen = [chat for chat in chats if len(chat) <= LONGEST_PROMPT][:per_task]
            answers = llm.generate(chosen, SamplingParams(max_tokens=max_tokens, temperature=0.0))
            texts[task] = [
                (chat, answer.token_ids) for chat, answer in zip(chosen, answers, strict=True)
            ]
    return texts


def compare(
    names: list[str],
    texts: dict[str, list[Text]],
    sizes: dict[int, int],
    rounds: int,
    max_tokens: int,
    curve: CostCurve,
    noise: float,
) -> dict[tuple[str, int], np.ndarray]:
    """Tokens per second of policies, ours among them: float [rounds, policies], by task and number
    of requests at once.

    sizes: requests of a round, by number at once. SmartSpec serves every cell once before anything
    counts.
    """

    def drawn(task: str, level: int, number: int) -> list[Text]:
        rng = np.random.default_rng([level, number])
        chosen = rng.integers(len(texts[task]), size=sizes[level])
        lengths = rng.integers(
            max_tokens // 2, 3 * max_tokens // 2, size=len(chosen), endpoint=True
        )
        found = [texts[task][i] for i in chosen]
        return [Text(text.prompt, text.answer[:n]) for text, n in zip(found, lengths, strict=True)]

    cells = [(task, level) for task in texts for level in sizes]
    with TemporaryDirectory() as folder:
        first = engine(OURS, Path(folder), curve, noise)
        for task, level in cells:
            first.serve(drawn(task, level, rounds), level)
        engines = [engine(name, Path(folder), curve, noise) for name in names]
        return {
            (task, level): np.array(
                [
                    [each.serve(drawn(task, level, n), level) for each in engines]
                    for n in range(rounds)
                ]
            )
            for task, level in cells
        }


def results_table(names: list[str], speeds: dict[tuple[str, int], np.ndarray]) -> Table:
    """A line for each cell, the worst ratio of SmartSpec to the best other policy first. speeds:
    float [rounds, policies], of the cell."""
    rows = []
    for (task, level), of_cell in speeds.items():
        means = np.exp(np.log(of_cell).mean(axis=0))
        of_best, of_off = means[-1] / means[:-1].max(), means[-1] / means[0]
        figures = [f"{mean:.1f}" for mean in means]
        rows.append((of_best, [task, str(level), *figures, f"{of_best:.3f}", f"{of_off:.3f}"]))
    title, columns = (
        f"Tokens/s, virtual; {OURS} against the best other",
        ("task", "c", *names, "of best", "of off"),
    )
    table = table_of(title, columns, [row for _, row in sorted(rows)])
    mean = np.exp(np.mean([np.log(of_best) for of_best, _ in rows]))
    table.caption = f"geometric mean of best: {mean:.3f}"
    return table
