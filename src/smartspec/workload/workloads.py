"""Workloads by name: the tasks of the shipped prompts, text to SQL, and long contexts made of the
shipped articles."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from smartspec.workload.prompts import Prompt, read_prompts, shipped_prompts

LONG_CONTEXT = "long-context"
LONG_CONTEXT_ARTICLES = 4  # about 1300 tokens
_ORDINALS = ("first", "second", "third", "fourth")


def shipped_workloads() -> dict[str, list[Prompt]]:
    """Sixteen prompts for each name."""
    with as_file(files("smartspec.workload") / "data" / "text_to_sql.jsonl") as path:
        of_task = by_task([*shipped_prompts(), *read_prompts(path)])
    return of_task | {LONG_CONTEXT: long_contexts(of_task["summarization"])}


def read_workloads(path: str | Path) -> dict[str, list[Prompt]]:
    """The prompts of a file or folder, by task; prompts without a task are of the workload
    `prompts`. Raises ValueError as read_prompts does."""
    return by_task(read_prompts(path))


def by_task(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    tasks = dict.fromkeys(prompt.task or "prompts" for prompt in prompts)
    return {
        task: [prompt for prompt in prompts if (prompt.task or "prompts") == task] for task in tasks
    }


def long_contexts(summaries: Sequence[Prompt]) -> list[Prompt]:
    """A prompt for each of these: the articles of so many in a row, and a task about one of
    them."""
    articles = [prompt.text.partition("\n\n")[2] for prompt in summaries]
    made = []
    for first in range(len(articles)):
        chosen = [articles[(first + i) % len(articles)] for i in range(LONG_CONTEXT_ARTICLES)]
        parts = [f"## Article {number}\n\n{text}" for number, text in enumerate(chosen, start=1)]
        ordinal = _ORDINALS[first % len(_ORDINALS)]
        task = f"Summarize the {ordinal} article in two sentences. Then quote its last sentence."
        made.append(
            Prompt(f"{LONG_CONTEXT}-{first + 1:02d}", LONG_CONTEXT, "\n\n".join([*parts, task]))
        )
    return made
