"""Editing a file with its old text as predicted output, against plain decoding: see `speed.py
prediction`.

The default model is too small to edit on demand. So the edited file is forced: the target computes
every pass, and then the next token of that file is its likeliest one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from textwrap import wrap

from lib.commands import console_of, table_of
from smartspec import LLM, SamplingParams
from smartspec.engine.runtime import executor
from smartspec.workload.prompts import shipped_prompts

NUM_LINES = 200
WIDTH = 60
EDITED_EVERY = 10  # lines
TASK = "Write the following file again, the longest word of every tenth line in capitals:"
FORCED_LOGIT = 1e4


@dataclass(frozen=True)
class Way:
    """How an engine answers. drafters: None for plain decoding."""

    name: str
    drafters: tuple[str, ...] | None
    is_predicted: bool = False


# No drafter that remembers: the rounds are alike.
BOTH = ("prompt-lookup", "prediction")
WAYS = (
    Way("off", None),
    Way("prediction", ("prediction",), True),
    Way("prompt-lookup", ("prompt-lookup",)),
    Way("prompt-lookup and prediction", BOTH, True),
    Way("a prediction that is wrong throughout", ("prediction",), True),
)
OTHER = WAYS[-1]


@dataclass(frozen=True)
class Answer:
    """Seconds to the first token and of the whole, and what was said."""

    first: float
    whole: float
    token_ids: tuple[int, ...]
    text: str
    num_steps: int

    @property
    def decoding(self) -> float:
        """Seconds after the first token."""
        return self.whole - self.first


def old_and_new() -> tuple[list[str], list[str]]:
    """A file of NUM_LINES lines of prose, and the same with a word of every tenth line in
    capitals."""
    old = list(
        islice(
            (line for prompt in shipped_prompts() for line in wrap(prompt.text, WIDTH)), NUM_LINES
        )
    )
    new = [
        capitalised(line) if number % EDITED_EVERY == 5 else line for number, line in enumerate(old)
    ]
    return old, new


def capitalised(line: str) -> str:
    """The longest word in capitals."""
    longest = max(line.split(), key=len)
    return line.replace(longest, longest.upper(), 1)


def compare(rounds: int, max_tokens: int | None, max_draft_tokens: int, quantization: str) -> None:
    """Print the table; every way in turn answers the same request, alone, `rounds` times after one
    that warms up."""
    old, new = ("\n".join(lines) for lines in old_and_new())
    options = {
        "max_batch": 1,
        "quantization": quantization,
        "max_draft_tokens": max_draft_tokens,
        "datastore": "none",
    }
    engines = [LLM(**options, **_policy(way)) for way in WAYS]
    prompt, answer = request_of(engines[0], old, new)
    executor.verify = forced(executor.verify, answer)
    params = SamplingParams(
        max_tokens=min(max_tokens or len(answer), len(answer)), temperature=0, ignore_eos=True
    )
    answers: list[list[Answer]] = [[] for _ in WAYS]
    for number, way, engine in islice(_turns(engines), (1 + rounds) * len(WAYS)):
        prediction = old[::-1] if way is OTHER else old if way.is_predicted else ""
        answers[number].append(answered(engine, prompt, params, prediction))
        print(f"{way.name}: {answers[number][-1].whole:.1f} s", flush=True)
    rows = [_row(way, some[1:], answers[0][1:]) for way, some in zip(WAYS, answers, strict=True)]
    columns = ("way", "tokens/step", "s", "of off", "s after the first token", "of off", "text")
    title = (
        f"{params.max_tokens} forced tokens, greedy, after a prompt of {len(prompt)} that is in "
        "the prefix cache"
    )
    console_of(160).print(table_of(title, columns, rows))
    for engine in engines:
        engine.close()


def forced(verify: Callable, answer: list[int]) -> Callable:
    """engine.sampling.verification.verify, for requests whose answer is to be this one: token
    ids."""

    def forced_verify(logits, requests, drafts):
        logits, row = logits.clone(), 0
        for request, draft in zip(requests, drafts, strict=True):
            for depth in (0, *draft.depths.tolist()):
                if (place := request.num_output_tokens + depth) < len(answer):
                    logits[row, answer[place]] = FORCED_LOGIT
                row += 1
        return verify(logits, requests, drafts)

    return forced_verify


def _policy(way: Way) -> dict:
    return {"policy": "off"} if way.drafters is None else {"drafters": way.drafters}


def _turns(engines: Sequence[LLM]) -> Iterator[tuple[int, Way, LLM]]:
    """Numbers, ways and their engines, in turn, for ever."""
    return cycle(list(zip(range(len(WAYS)), WAYS, engines, strict=True)))


def request_of(llm: LLM, old: str, new: str) -> tuple[list[int], list[int]]:
    """The conversation with the old file, and the edited one: token ids."""
    messages = [{"role": "user", "content": f"{TASK}\n\n{old}"}]
    chat = llm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt, answer = (
        llm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (chat, new)
    )
    return prompt, answer


def answered(llm: LLM, prompt: list[int], params: SamplingParams, prediction: str) -> Answer:
    """One answer, and what it took."""
    began, first, token_ids, text, num_steps = time.perf_counter(), None, [], "", 0
    for delta in llm.stream([prompt], params, prediction):
        first = first or time.perf_counter() - began
        token_ids += delta.token_ids
        text, num_steps = text + delta.text, num_steps + 1
    return Answer(first or 0.0, time.perf_counter() - began, tuple(token_ids), text, num_steps)


def _row(way: Way, some: list[Answer], off: list[Answer]) -> tuple[str, ...]:
    return (
        way.name,
        f"{len(some[0].token_ids) / some[0].num_steps:.2f}",
        f"{median(answer.whole for answer in some):.2f}",
        _ratio([base.whole / answer.whole for answer, base in zip(some, off, strict=True)]),
        f"{median(answer.decoding for answer in some):.2f}",
        _ratio([base.decoding / answer.decoding for answer, base in zip(some, off, strict=True)]),
        "same" if all(answer.token_ids == off[0].token_ids for answer in some) else "DIFFERENT",
    )


def _ratio(values: list[float]) -> str:
    """Of rounds: the median, the least and the largest."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
