"""Training texts by the target itself, in batches through our own engine."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.train.prompts import ChatFormat, task_on, text_request
from lab.train.recording import RecordingExecutor
from lab.train.shards import num_answer_tokens, shard_paths, write_shard
from lab.train.signals import Signals, signals_path, write_signals
from smartspec.control.planning import no_drafts
from smartspec.control.records import BatchView, Drafted, Outcome, Plan
from smartspec.core.engine_core import EngineCore
from smartspec.core.origin import Origin
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.texts.shards import TokenRow

ROWS_PER_SHARD = 64
TEMPERATURES = (0.0, 0.8)  # of answers, in equal shares: users request both
BLOCK_SIZE = 16  # of KV memory
# of new conversations that request a text; the others are what the target expects users to write
SHARE_OF_TEXTS = 0.3
SHARE_OF_TASKS = 0.35  # of answers that are worked on in another conversation
MIN_TASK_TOKENS, MAX_TASK_TOKENS = 24, 320  # of a text to work on
MIN_USER_TOKENS = 4
MIN_ANSWER_TOKENS = 8
# an answer that ends in so many copies of one text is stuck in it
LONGEST_PERIOD, REPEATS, MIN_REPEATED = 64, 3, 32


@dataclass(frozen=True)
class GenerationLimits:
    """Tokens of a user's turn, of a whole prompt and of an answer, and conversations under way at
    once."""

    user: int = 96
    prompt: int = 512
    answer: int = 320
    concurrency: int = 64

    @property
    def total(self) -> int:
        """Tokens of a conversation, in whole blocks of KV memory."""
        return -(-(self.prompt + self.answer) // BLOCK_SIZE) * BLOCK_SIZE

    def within(self, max_model_len: int) -> "GenerationLimits":
        """The same in proportion for a model of so many positions, if these are too many for it."""
        scale = max_model_len / self.total
        if scale >= 1:
            return self
        user, prompt, answer = (
            int(each * scale) // BLOCK_SIZE * BLOCK_SIZE
            for each in (self.user, self.prompt, self.answer)
        )
        return GenerationLimits(max(user, BLOCK_SIZE), prompt, answer, self.concurrency)


class NoDrafts:
    """The controller of plain decoding (core.engine_core.Controller), which needs no profile of the
    machine."""

    predicted_seconds = 0.0

    def plan(self, view: BatchView) -> Plan:
        return no_drafts(view.num_rows)

    def cut(self, plan: Plan, drafted: Drafted) -> np.ndarray:
        return drafted.lengths

    def learn(self, plan: Plan, outcome: Outcome) -> None: ...

    def end(self, request_id: int) -> None: ...


@dataclass
class _Turn:
    """What a request is for: a user's turn (answers is False) or an answer."""

    request: Request
    answers: bool


class Generator:
    """Keeps limits.concurrency requests under way and yields finished conversations.

    core: its executor is recording. prompts: conversations to begin with; when they are used up the
    target writes its own. Greedy answers and those at T = 0.8 take turns at random, drawn from
    seed.
    """

    def __init__(
        self,
        core: EngineCore,
        recording: RecordingExecutor,
        chat: ChatFormat,
        stop_token_ids: frozenset[int],
        limits: GenerationLimits = GenerationLimits(),
        *,
        seed: int = 0,
        prompts: tuple[str, ...] = (),
    ):
        self._core, self._recording, self._chat, self._limits = core, recording, chat, limits
        self._stop_token_ids = stop_token_ids
        self._rng = np.random.default_rng(seed)
        self._ids = itertools.count()
        self._pending = deque(prompts)
        self._turns: dict[int, _Turn] = {}

    def rows(self) -> Iterator[tuple[TokenRow, Signals]]:
        """Finished conversations, for ever."""
        now = 0.0
        while True:
            while len(self._turns) < self._limits.concurrency:
                self._begin()
            step = self._core.step(now)
            now += step.seconds.total
            for output in step.outputs:
                if output.finish_reason is not None:
                    yield from self._finish(self._turns.pop(output.request.request_id))
            yield from self._end_loops()

    def _begin(self) -> None:
        """Answer a prompt that waits, or have the target write one."""
        if not self._pending and self._rng.random() < SHARE_OF_TEXTS:
            self._pending.append(text_request(self._rng))
        if self._pending:
            token_ids = self._chat.encode(self._pending.popleft())
            if len(token_ids) <= self._limits.prompt:
                temperature = float(self._rng.choice(TEMPERATURES))
                self._add(
                    token_ids,
                    SamplingParams(max_tokens=self._limits.answer, temperature=temperature),
                    True,
                )
        else:
            params = SamplingParams(max_tokens=self._limits.user, temperature=1.0)
            self._add(self._chat.encode_header(), params, False)

    def _add(self, token_ids: list[int], params: SamplingParams, answers: bool) -> None:
        seed = int(self._rng.integers(2**31))
        number = next(self._ids)
        # nothing is shared: all is recorded
        stop, origin = self._stop_token_ids, Origin(cache_salt=f" {number}")
        request = Request(number, token_ids, params, seed=seed, stop_token_ids=stop, origin=origin)
        self._core.add_request(request)
        self._turns[request.request_id] = _Turn(request, answers)

    def _finish(self, turn: _Turn) -> Iterator[tuple[TokenRow, Signals]]:
        if turn.request.finish_reason == "error":
            raise ValueError(
                f"the target cannot write texts: {turn.request.error}; those that were finished "
                "are kept"
            )
        output = turn.request.output_token_ids
        signals = self._recording.take(turn.request)
        if not turn.answers:
            if turn.request.finish_reason == "stop" and len(output) > MIN_USER_TOKENS:
                self._pending.append(self._decode(output[:-1]))
            return
        kept = turn.request.num_prompt_tokens + without_loop(output)
        row = TokenRow(turn.request.token_ids[:kept].copy(), turn.request.num_prompt_tokens)
        if row.num_answer_tokens < MIN_ANSWER_TOKENS:
            return
        if row.num_answer_tokens >= MIN_TASK_TOKENS and self._rng.random() < SHARE_OF_TASKS:
            text = self._decode(row.token_ids[row.answer_start :][:MAX_TASK_TOKENS])
            self._pending.append(task_on(text, self._rng))
        yield row, signals.shorten(row.num_answer_tokens)

    def _end_loops(self) -> Iterator[tuple[TokenRow, Signals]]:
        """An answer that only repeats itself would go on to its limit."""
        stuck = [
            turn
            for turn in self._turns.values()
            if turn.answers
            and turn.request.num_output_tokens % 32 == 31
            and without_loop(turn.request.output_token_ids) < turn.request.num_output_tokens
        ]
        for turn in stuck:
            del self._turns[turn.request.request_id]
            self._core.abort(turn.request.request_id)
            yield from self._finish(turn)

    def _decode(self, token_ids: np.ndarray) -> str:
        return self._chat.tokenizer.decode(token_ids.tolist(), skip_special_tokens=True).strip()


def without_loop(token_ids: np.ndarray) -> int:
    """Tokens to keep: all, or up to the end of the first copy where the text ends in copies of one
    another."""
    for period in range(1, min(LONGEST_PERIOD, len(token_ids) // REPEATS) + 1):
        span = max(period * REPEATS, MIN_REPEATED)
        if span > len(token_ids) or np.any(token_ids[-span + period :] != token_ids[-span:-period]):
            continue
        differs = np.flatnonzero(token_ids[period:] != token_ids[:-period])
        return (int(differs[-1]) + 1 if len(differs) else 0) + period
    return len(token_ids)


def generate_shards(
    generator: Generator,
    folder: Path,
    num_tokens: int,
    tokenizer: str,
    report: Callable[[str], None],
) -> None:
    """Append shards to folder until it holds num_tokens answer tokens; interrupted, it keeps the
    finished rows. tokenizer: digest of the generator's."""
    have = num_answer_tokens(folder)
    rows: list[tuple[TokenRow, Signals]] = []
    try:
        for row, signals in generator.rows():
            rows.append((row, signals))
            have += row.num_answer_tokens
            if len(rows) == ROWS_PER_SHARD or have >= num_tokens:
                _write(folder, rows, tokenizer)
                rows = []
                report(f"{have} of {num_tokens} answer tokens in {len(shard_paths(folder))} shards")
            if have >= num_tokens:
                return
    finally:
        if rows:
            _write(folder, rows, tokenizer)


def _write(folder: Path, pairs: list[tuple[TokenRow, Signals]], tokenizer: str) -> None:
    """The signals first: a shard that is there has them."""
    rows = [row for row, _ in pairs]
    write_signals(
        signals_path(folder, len(shard_paths(folder))), [signals for _, signals in pairs], rows
    )
    write_shard(folder, rows, tokenizer)
