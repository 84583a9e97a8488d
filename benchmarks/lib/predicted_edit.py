"""Editing a file with its old text as predicted output, against plain decoding: see `speed.py prediction`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import cycle, islice
from statistics import median
from textwrap import wrap

from lib.commands import console_of, table_of
from smartspec import LLM, SamplingParams
from smartspec.workload.prompts import shipped_prompts

NUM_LINES = 200
GIVEN_LINES = 4  # of the edited file, with which the answer begins
WIDTH = 60
EDITED_EVERY = 10  # lines
ASKED = "Write the following file again, as it is, to the last line:"


@dataclass(frozen=True)
class Way:
    """How an engine answers. drafters: None for plain decoding."""

    name: str
    drafters: tuple[str, ...] | None
    is_predicted: bool = False


WAYS = (
    Way("off", None),
    Way("goodput, the old file as prediction", ("prediction",), True),
    Way("goodput, default drafters, no prediction", ("prompt-lookup", "recycling", "prediction")),
    Way("goodput, default drafters and prediction", ("prompt-lookup", "recycling", "prediction"), True),
    Way("goodput, a prediction of another file", ("prediction",), True),
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
    """A file of NUM_LINES lines of prose, and the same with a word of every tenth line in capitals."""
    old = list(islice((line for prompt in shipped_prompts() for line in wrap(prompt.text, WIDTH)), NUM_LINES))
    new = [capitalised(line) if number % EDITED_EVERY == 5 else line for number, line in enumerate(old)]
    return old, new


def capitalised(line: str) -> str:
    """The longest word in capitals."""
    longest = max(line.split(), key=len)
    return line.replace(longest, longest.upper(), 1)


def compare(rounds: int, max_tokens: int | None, max_draft_tokens: int, quantization: str) -> None:
    """Print the table; every way in turn answers the same request, alone, `rounds` times after one that warms up."""
    old, new = old_and_new()
    options = {"max_batch": 1, "quantization": quantization, "max_draft_tokens": max_draft_tokens, "datastore": "none"}
    engines = [LLM(**options, **_policy(way)) for way in WAYS]
    prompt, wanted = request_of(engines[0], new)
    params = SamplingParams(max_tokens=max_tokens or len(wanted), temperature=0)
    predictions = {True: "\n".join(old[GIVEN_LINES:]), False: ""}
    answers: list[list[Answer]] = [[] for _ in WAYS]
    for number, way, engine in islice(_turns(engines), (1 + rounds) * len(WAYS)):
        prediction = "\n".join(reversed(old)) if way is OTHER else predictions[way.is_predicted]
        answer = answered(engine, prompt, params, prediction)
        print(f"{way.name}: {answer.whole:.1f} s", flush=True)
        answers[number].append(answer)
    rows = [_row(way, some[1:], answers[0][1:]) for way, some in zip(WAYS, answers, strict=True)]
    columns = ("way", "tokens/step", "s", "of off", "s after the first token", "of off", "text of off")
    title = f"{len(answers[0][0].token_ids)} tokens after a prompt of {len(prompt)} that is in the prefix cache, greedy"
    console_of(160).print(table_of(title, columns, rows))
    said = answers[0][0].text.splitlines()
    blocks = SequenceMatcher(None, said, new[GIVEN_LINES:], autojunk=False).get_matching_blocks()
    print(f"{sum(block.size for block in blocks)} of the {len(said)} lines said are lines of the edited file, in order")
    for engine in engines:
        engine.close()


def _policy(way: Way) -> dict:
    return {"policy": "off"} if way.drafters is None else {"drafters": way.drafters}


def _turns(engines: Sequence[LLM]):
    """(number, way, engine), all in turn, for ever."""
    return cycle(list(zip(range(len(WAYS)), WAYS, engines, strict=True)))


def request_of(llm: LLM, new: Sequence[str]) -> tuple[list[int], list[int]]:
    """A conversation in which the edited file stands and the answer has begun, and the rest of it: token ids.

    A model as small as the default one edits no file on demand; but it copies one. What it says is its own.
    """
    text = "\n".join(new)
    messages = [{"role": "user", "content": f"{ASKED}\n\n{text}"}]
    chat = llm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    begun = chat + "\n".join(new[:GIVEN_LINES]) + "\n"
    rest = "\n".join(new[GIVEN_LINES:])
    return tuple(llm.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (begun, rest))


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
