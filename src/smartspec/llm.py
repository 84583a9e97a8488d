"""Generation in this process: prompts in, texts out.

from smartspec import LLM, SamplingParams

with LLM("smollm2-135m-instruct") as llm:
    for output in llm.generate(["1, 2, 3,", "ha ha ha"], SamplingParams(max_tokens=24, temperature=0)):
        print(output.text)
"""  # noqa: E501

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

from smartspec.core.batch import TokenLogprobs
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.speculation import SpeculationOptions
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.engine.runtime.build import build_engine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.runtime.engine_thread import EngineThread
from smartspec.engine.text.stream import TextDelta
from smartspec.engine.text.token_texts import TokenText

if TYPE_CHECKING:
    from smartspec.server.openai.prompts import PromptReader

# prompts that may wait: a call of one's own need not be protected from oneself
UNBOUNDED = 1_000_000
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class GenerationOutput:
    """An answer. index: of its prompt. token_ids: of the answer, a final stop token included.
    finish_reason: "stop" or "length", None while it is being generated. num_accepted_tokens: draft
    tokens among token_ids; num_steps: steps that brought tokens, so that len(token_ids) / num_steps
    is the mean acceptance length. num_cached_tokens: of the prompt, found in the prefix cache.
    logprobs: of the text's tokens, prompt_logprobs: of the prompt's after the first, where
    SamplingParams request them."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_accepted_tokens: int = 0
    num_steps: int = 0
    logprobs: tuple[TokenText, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None

    def extended(self, delta: TextDelta) -> "GenerationOutput":
        """The answer with what a step added to it."""
        return replace(
            self,
            text=self.text + delta.text,
            token_ids=self.token_ids + delta.token_ids,
            finish_reason=delta.finish_reason,
            num_prompt_tokens=delta.num_prompt_tokens,
            num_cached_tokens=delta.num_cached_tokens,
            num_accepted_tokens=self.num_accepted_tokens
            + sum(is_accepted for _, is_accepted in delta.pieces),
            num_steps=self.num_steps + 1,
            logprobs=None if delta.logprobs is None else (self.logprobs or ()) + delta.logprobs,
            prompt_logprobs=self.prompt_logprobs or delta.prompt_logprobs,
        )


class LLM:
    """A loaded model. model: the embedded model's name, a Hugging Face id, a folder or a GGUF file.
    options: of EngineConfig, such as policy="off", drafters=("prompt-lookup",), max_batch=64.

    engine: what runs it, with listeners of its steps. What takes time is said on standard error,
    where that is a terminal.
    Raises ValueError or OSError naming what is wrong with an option or a checkpoint. Not for
    several threads; a server is `smartspec serve`.
    """

    def __init__(self, model: str = EngineConfig.model, **options):
        config = EngineConfig(
            model=model, **{"max_queue": UNBOUNDED, "max_queue_per_client": UNBOUNDED} | options
        )
        thread = EngineThread()
        report = (
            partial(print, file=sys.stderr, flush=True) if sys.stderr.isatty() else _say_nothing
        )
        engine = thread.submit(partial(build_engine, config, report)).result()
        self.tokenizer, self._close_engine = engine.tokenizer, engine.close
        self.engine = AsyncEngine(engine, thread)
        self._runner, self._is_closed = asyncio.Runner(), False
        self._runner.run(self._start())

    def get_default_sampling_params(self) -> SamplingParams:
        """What is taken where a call gives none: that of the checkpoint's generation config, as in
        vLLM."""
        return SamplingParams(**self.engine.sampling_defaults)  # type: ignore[arg-type]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        prediction: str = "",
    ) -> list[GenerationOutput]:
        """Answers to all prompts, in their order: texts, or token ids, continued as they are.
        params: for all of them. prediction: a guess of every answer, such as the old text of a file
        to edit, which drafts are made of; it changes how fast answers come, never what they are.

        Raises ValueError where a prompt is empty or too long, EngineError where a request failed;
        all others are then given up.
        """
        outputs: dict[int, GenerationOutput] = {}
        for delta in self.stream(prompts, params, prediction):
            begun = outputs.get(delta.index, GenerationOutput(delta.index))
            outputs[delta.index] = begun.extended(delta)
        return [outputs[index] for index in sorted(outputs)]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        prediction: str = "",
    ) -> Iterator[TextDelta]:
        """The same answers as they come: index says to which prompt a piece belongs. Closing the
        iterator aborts."""
        guess = self.tokenizer(prediction, add_special_tokens=False)["input_ids"]
        deltas = self.engine.generate(
            self._encoded(prompts),
            params or self.get_default_sampling_params(),
            speculation=SpeculationOptions(predicted_token_ids=tuple(guess)),
        )
        try:
            while (delta := self._runner.run(_next(deltas))) is not None:
                yield delta
        finally:
            self._runner.run(deltas.aclose())

    def chat(
        self,
        messages: Sequence[dict] | Sequence[Sequence[dict]],
        params: SamplingParams | None = None,
        prediction: str = "",
        **fields: object,
    ) -> GenerationOutput | list[GenerationOutput]:
        """The answer to a conversation, or the answers to several, written in the model's chat
        template.

        messages: as the server takes them. fields: others of /v1/chat/completions that are about
        the prompt: tools, tool_choice, chat_template_kwargs, reasoning_effort,
        add_generation_prompt, continue_final_message. Raises ValueError naming what is wrong with
        them, or where the model has no chat template.
        """
        if messages and isinstance(messages[0], dict):
            return self.generate([self._prompt_of(messages, fields)], params, prediction)[0]
        return self.generate(
            [self._prompt_of(each, fields) for each in messages], params, prediction
        )

    def close(self) -> None:
        """Stop the engine; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._runner.run(self.engine.stop())
            self._runner.close()
            self._close_engine()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    @cached_property
    def _prompts(self) -> "PromptReader":
        from smartspec.server.openai.prompts import PromptReader

        return PromptReader(self.tokenizer, self.engine)

    def _prompt_of(self, messages: Sequence[dict], fields: Mapping[str, object]) -> list[int]:
        """Token ids of a conversation, read as the server reads it."""
        from smartspec.server.http.errors import APIError
        from smartspec.server.openai.chat_body import read_prompt_fields

        body = read_prompt_fields({"messages": list(messages), **fields})
        try:
            return self._prompts.read_chat(body)
        except APIError as error:
            raise ValueError(error.message) from error

    async def _start(self) -> None:
        self.engine.start()

    def _encoded(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]  # type: ignore[list-item]
        found = [
            self.tokenizer(each)["input_ids"] if isinstance(each, str) else list(each)
            for each in prompts
        ]
        if empty := [index for index, token_ids in enumerate(found) if not token_ids]:
            raise ValueError(f"prompt {empty[0]} is empty: give at least one token")
        return found


async def _next(deltas) -> TextDelta | None:
    return await anext(deltas, None)


def _say_nothing(text: str) -> None:
    pass
