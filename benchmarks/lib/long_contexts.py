"""Tokens per second after long texts, of drafters against none, on the live engine: see `speed.py
contexts`."""

from collections.abc import Iterator
from itertools import cycle

from lib.commands import console_of, table_of
from lib.task_speed import Kept, measure, rates
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.build import Engine
from smartspec.engine.runtime.config import EngineConfig, parse_drafters
from smartspec.workload.prompts import Prompt

# After the same documents, so that these are in the prefix cache and a cell takes seconds.
QUESTIONS = (
    "Summarize the text above in your own words.",
    "Which people, places and organisations does the text above mention? Tell what it says of each "
    "of them.",
    "What is the most important statement of the text above, and why?",
    "Write a letter to a friend about what you have read above.",
    "Write ten questions about the text above, each with its answer.",
)


def compare(
    drafters: list[str], contexts: list[int], concurrency: int, texts: list[Prompt], settings: dict
) -> None:
    """Print a line for each context. settings: rows, parts, max_tokens, temperature,
    quantization."""
    longest = max(contexts) + settings["max_tokens"]
    options = {
        "quantization": settings["quantization"],
        "max_batch": concurrency,
        "max_model_len": longest,
    }
    options |= {"kv_tokens": (concurrency + 1) * (longest + 64), "strict": True}
    engines = [Kept("off", EngineConfig(policy="off", **options))]
    engines += [
        Kept(name, EngineConfig(drafters=parse_drafters(name), **options)) for name in drafters
    ]
    params = SamplingParams(max_tokens=settings["max_tokens"], temperature=settings["temperature"])
    rows = []
    for number, context in enumerate(contexts):
        for each in engines:
            each.begin(
                long_requests(each.engine, texts, context, params, first_id=1_000_000 * number)
            )
        cell = measure(engines, concurrency, settings["rows"], settings["parts"])
        ratios = [rates(cell, name) / rates(cell, "off") for name in drafters]
        cells = [
            f"{ratio[0]:.2f} ({ratio[1:].min():.2f}-{ratio[1:].max():.2f})" for ratio in ratios
        ]
        rows.append((context, concurrency, f"{rates(cell, 'off')[0]:.1f}", *cells))
        print(*rows[-1], flush=True)
    columns = ("context", "requests", "off, tokens/s", *drafters)
    console_of(140).print(table_of("Tokens/s, of off, by tokens of the prompt", columns, rows))


def long_requests(
    engine: Engine, texts: list[Prompt], context: int, params: SamplingParams, first_id: int
) -> Iterator[Request]:
    """Questions about the texts, one after the other, of so many tokens each."""
    joined = "\n\n".join(prompt.text for prompt in texts)
    tokens = engine.tokenizer.encode(joined[: 16 * context], add_special_tokens=False)
    for number, question in enumerate(cycle(QUESTIONS), first_id):
        size = context
        while True:  # with the question and the template as long as wanted
            content = f"{engine.tokenizer.decode(tokens[:size])}\n\n{question}"
            chat = engine.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
            found = engine.tokenizer.encode(chat, add_special_tokens=False)
            if len(found) <= context:
                break
            size -= len(found) - context
        yield Request(number, found, params, seed=number)
