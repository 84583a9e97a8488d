"""Speculation on reasoning steps: a small model writes them, a large one scores them or takes over.

Lossy: the answer is not that of the large model. Sources: SpecReason (arXiv 2504.07891) and
Speculative Thinking (arXiv 2504.12329). Of the second only the rule when the large model takes over
is here: no recap prompt, no growing limits.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from lab.reasoning.writer import Writer, Written
from smartspec.core.sampling_params import SamplingParams

SMALL, LARGE = "small", "large"
END_OF_STEP = "\n\n"
SCORE_TASK = "\n\nIs the last step right, and does it help? Score from 0 (no) to 9 (yes): "
CUE_TOKENS = 20  # that the small model writes after a step before it is decided who goes on
FIRST_TOKENS = 100  # by the large model
TAKEOVERS = {"verify": 125, "negative": 20}  # tokens that the large model writes
CUES = {
    "verify": re.compile(r"\b(wait|verify|check|make sure)\b", re.IGNORECASE),
    "negative": re.compile(r"\b(wrong|mistake|incorrect|error|alternatively|hmm)\b", re.IGNORECASE),
}


@dataclass(frozen=True)
class Step:
    """Tokens of the answer. by: SMALL or LARGE. score: of the step of the small model, 0 to 9,
    whether it stayed or was replaced. cue: why the large model took over, a key of TAKEOVERS."""

    by: str
    token_ids: tuple[int, ...]
    ended: bool
    score: int | None = None
    cue: str | None = None


@dataclass(frozen=True)
class Pair:
    """The models of one answer. score_task: token ids of SCORE_TASK. digits: those of 0 to 9."""

    small: Writer
    large: Writer
    score_task: tuple[int, ...]
    digits: tuple[int, ...]


async def spec_reason(
    pair: Pair, prompt: list[int], params: SamplingParams, *, step_tokens: int, threshold: int
) -> AsyncIterator[Step]:
    """Steps until the answer ends or has params.max_tokens. A step of the small model stays from
    this score on, else the large one writes it anew."""
    text, left = list(prompt), params.max_tokens
    while left > 0:
        of_step = _next(params, min(step_tokens, left), left, END_OF_STEP)
        written, by = await pair.small.write(text, of_step), SMALL
        score = await _score(pair, [*text, *written.token_ids])
        if score < threshold:
            written, by = await pair.large.write(text, of_step), LARGE
        yield _step(by, written, score=score)
        if written.ended:
            return
        text += written.token_ids
        left -= len(written.token_ids)


async def speculative_thinking(
    pair: Pair, prompt: list[int], params: SamplingParams, *, step_tokens: int
) -> AsyncIterator[Step]:
    """Steps until the answer ends or has params.max_tokens. The large model begins; the small one
    goes on until what it writes after a blank line has a cue, then the large one writes a few
    tokens."""
    text, left = list(prompt), params.max_tokens
    by, cue, size, stop = LARGE, None, FIRST_TOKENS, ""
    while left > 0:
        writer = pair.large if by == LARGE else pair.small
        written = await writer.write(text, _next(params, min(size, left), left, stop))
        found = None if by == LARGE or stop else _cue(written.text)
        if found is not None:  # what has the cue is dropped, and written by the large model
            by, cue, size = LARGE, found, TAKEOVERS[found]
            continue
        yield _step(by, written, cue=cue)
        if written.ended:
            return
        text += written.token_ids
        left -= len(written.token_ids)
        # After a step: a few tokens without a stop, to look for a cue. After those, or a takeover:
        # a step.
        stop = "" if stop and written.text.endswith(stop) else END_OF_STEP
        by, cue, size = SMALL, None, step_tokens if stop else CUE_TOKENS


def _next(params: SamplingParams, num_tokens: int, left: int, stop: str) -> SamplingParams:
    """For the next tokens. Its seed is another one than that of those before: it depends on what is
    left."""
    seed = None if params.seed is None else params.seed + left
    return replace(
        params,
        max_tokens=num_tokens,
        seed=seed,
        stop=(stop,) if stop else (),
        include_stop_str_in_output=True,
    )


async def _score(pair: Pair, text: list[int]) -> int:
    """The digit that the large model says of a text's last step."""
    params = SamplingParams(max_tokens=1, temperature=0.0, allowed_token_ids=pair.digits)
    written = await pair.large.write([*text, *pair.score_task], params)
    return pair.digits.index(written.token_ids[0])


def _step(by: str, written: Written, **more) -> Step:
    return Step(by, written.token_ids, written.ended, **more)


def _cue(text: str) -> str | None:
    return next((name for name, words in CUES.items() if words.search(text)), None)
