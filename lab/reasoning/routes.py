"""POST /v1/reasoning/chat/completions: answers of two models, which are not those of the large one
alone."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lab.reasoning.body import MAX_TOKENS, ReasoningBody
from lab.reasoning.methods import (
    LARGE,
    SCORE_TASK,
    SMALL,
    Pair,
    Step,
    spec_reason,
    speculative_thinking,
)
from lab.reasoning.writer import Writer
from smartspec.core.origin import Origin
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.http.parsing import BodyParser
from smartspec.server.openai.calls import CLIPPED_HEADER, NO_LIMIT, check_model
from smartspec.server.openai.prompts import PromptReader

LOSSY = "lossy: this answer is not that of the model alone"


def reasoning_routes(
    large: AsyncEngine,
    speculator: tuple[AsyncEngine, str],
    names: Sequence[str],
    prompts: PromptReader,
    tokenizer,
    parser: BodyParser,
) -> APIRouter:
    """large: serves names, the first of which is in answers. speculator: the small engine, and its
    name. Both have the tokenizer. ValueError where that has no token for each digit."""
    router, name = APIRouter(), names[0]
    small, small_name = speculator
    score_task, *digits = (_token_ids(tokenizer, text) for text in (SCORE_TASK, *"0123456789"))
    if any(len(digit) != 1 for digit in digits):
        raise ValueError(
            "the tokenizer has no token for each digit, which scores of steps are: leave "
            "--speculator out"
        )
    digit_ids = tuple(digit[0] for digit in digits)

    def read(
        data: bytes, client: Origin
    ) -> tuple[ReasoningBody, list[int], SamplingParams, dict[str, str]]:
        body = parser.parse(ReasoningBody, data, client)
        check_model(body.model, names)
        prompt = prompts.read_chat(body)
        requested = body.max_tokens
        # The tokens with which a step is scored must fit, too.
        room = prompts.room(body, None, [[*prompt, *score_task]])
        wanted = MAX_TOKENS if requested in (None, NO_LIMIT) else requested
        max_tokens = min(wanted, MAX_TOKENS, room)
        headers = (
            {CLIPPED_HEADER: str(max_tokens)}
            if requested is not None and requested > max_tokens
            else {}
        )
        return (
            body,
            prompt,
            body.sampling_params(max_tokens, None, (), large.sampling_defaults),
            headers,
        )

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> JSONResponse:
        body, prompt, params, headers = await asyncio.to_thread(
            read, await request.body(), request.state.origin
        )
        origin: Origin = body.origin(request.state.origin)
        pair = Pair(Writer(small, origin), Writer(large, origin), tuple(score_task), digit_ids)
        steps = [step async for step in _steps(pair, prompt, params, body)]
        said = [token for step in steps for token in step.token_ids]
        text = await asyncio.to_thread(tokenizer.decode, said, skip_special_tokens=True)
        report = _report(body, pair, steps, {SMALL: small_name, LARGE: name})
        answer = _answer(name, len(prompt), text, steps) | {"reasoning_speculation": report}
        return JSONResponse(answer, headers=headers)

    return router


def _token_ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _steps(
    pair: Pair, prompt: list[int], params: SamplingParams, body: ReasoningBody
) -> AsyncIterator[Step]:
    options = body.reasoning_speculation
    if options.method == "spec-reason":
        return spec_reason(
            pair, prompt, params, step_tokens=options.step_tokens, threshold=options.threshold
        )
    return speculative_thinking(pair, prompt, params, step_tokens=options.step_tokens)


def _answer(name: str, num_prompt_tokens: int, text: str, steps: list[Step]) -> dict:
    num_tokens = sum(len(step.token_ids) for step in steps)
    message = {"role": "assistant", "content": text, "refusal": None}
    reason = "stop" if steps[-1].ended else "length"
    counts = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": counts | {"total_tokens": num_prompt_tokens + num_tokens},
    }


def _report(body: ReasoningBody, pair: Pair, steps: list[Step], models: dict[str, str]) -> dict:
    """What was done, in every answer. written: tokens, those that were dropped and scores among
    them."""
    listed = [
        {"by": step.by, "tokens": len(step.token_ids)}
        | ({} if step.score is None else {"score": step.score})
        | ({} if step.cue is None else {"cue": step.cue})
        for step in steps
    ]
    writers = {SMALL: pair.small, LARGE: pair.large}
    return {
        "note": LOSSY,
        "method": body.reasoning_speculation.method,
        "models": models,
        "seconds": {by: round(writer.seconds, 3) for by, writer in writers.items()},
        "written": {by: writer.num_tokens for by, writer in writers.items()},
        "steps": listed,
    }
