"""`smartspec generate`: one prompt, answered in this process and streamed to the terminal."""

import gc
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from smartspec.cli.engine_options import engine_config_of
from smartspec.cli.options import command

if TYPE_CHECKING:
    from smartspec.core.batch import StepOutput
    from smartspec.core.sampling_params import SamplingParams
    from smartspec.llm import LLM


@dataclass(frozen=True, kw_only=True)
class Question:
    """The prompt, and the options of the engine."""

    prompt: Annotated[str | None, Argument(help="The prompt; or use --file.")] = None
    file: Annotated[
        Path | None, Option(help="Read the prompt from a text file (- for standard input).")
    ] = None
    model: Annotated[
        str | None, Option(help="Hugging Face id, folder or GGUF file (default: built in).")
    ] = None
    drafter: Annotated[
        str | None,
        Option(
            help="prompt-lookup, recycling, datastore, head (the model's own), a model, a head's "
            "folder, or module:Class (a,b); or none."
        ),
    ] = None
    policy: Annotated[str, Option(help="goodput, off, fixed:K or module:Class.")] = "goodput"
    max_tokens: Annotated[int, Option(min=1, help="New tokens at most.")] = 256
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0
    seed: Annotated[int | None, Option(help="For repeatable sampling.")] = None


@command(Question)
def generate(options: Question) -> None:
    """Answer one prompt on the terminal; the last line, on standard error, says how fast it went.

    A model without a chat template continues the text."""
    text = _read_prompt(options.prompt, options.file)
    print("loading libraries", file=sys.stderr, flush=True)
    from smartspec.core.sampling_params import SamplingParams
    from smartspec.llm import LLM

    gc.freeze()  # the end of the process need not take it apart
    params = SamplingParams(
        max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed
    )
    try:
        with LLM(**vars(engine_config_of(options))) as llm:
            _stream(llm, _tokenize(llm.tokenizer, text), params)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise Exit(130) from None


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise ValueError("give either a PROMPT or --file FILE")
    if prompt is not None:
        return prompt
    return (
        sys.stdin.read().removeprefix("\ufeff")
        if str(file) == "-"
        else file.read_text(encoding="utf-8-sig")
    )


def _tokenize(tokenizer, text: str) -> list[int]:
    if not text:
        raise ValueError("the prompt is empty")
    if tokenizer.chat_template is None:
        return tokenizer(text)["input_ids"]
    messages = [{"role": "user", "content": text}]
    conversation = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    return tokenizer(conversation, add_special_tokens=False)["input_ids"]


def _stream(llm: "LLM", token_ids: list[int], params: "SamplingParams") -> None:
    counts: Counter[str] = Counter()

    def count(output: "StepOutput") -> None:
        counts["drafts"] += sum(length > 0 for length in output.verified_lengths)
        counts["accepted"] += output.num_accepted_tokens

    llm.engine.listeners.append(count)
    start = time.monotonic()
    num_tokens = 0
    for delta in llm.stream([token_ids], params):
        print(delta.text, end="", flush=True)
        num_tokens = delta.num_output_tokens
    seconds = time.monotonic() - start
    print()
    print(
        f"{num_tokens} tokens in {seconds:.2f} s, {num_tokens / seconds:.1f} tokens/s, "
        f"mean acceptance length {1 + counts['accepted'] / max(counts['drafts'], 1):.2f}",
        file=sys.stderr,
    )
