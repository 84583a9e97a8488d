"""The drafters' memory of finished requests, by cache salt; in files, too, where there is a folder
for them."""

from collections import OrderedDict, deque

import numpy as np

from smartspec.core.batch import Batch
from smartspec.core.origin import key_of
from smartspec.core.per_key import PerKey
from smartspec.core.request import Request
from smartspec.drafters.answer_files import AnswerFiles
from smartspec.drafters.finished_answers import NO_TOKENS, PROMPT_TOKENS, FinishedAnswers
from smartspec.drafters.recycling import MAX_SALTS

STEP_TOKENS = 256  # of all answers, that are taken in before a step: a tenth of a millisecond


class AnswerMemory:
    """Answers by salt. The drafters of an engine share it, so that each answer is remembered once.

    files: where answers are kept over restarts, None for nowhere. Of an API key's salts beyond
    MAX_SALTS the longest unused is forgotten, taken in or not; the answers of requests without a
    salt are not counted.
    """

    def __init__(self, files: AnswerFiles | None = None):
        self._files = files
        self._of_salt: PerKey[str, FinishedAnswers] = PerKey(MAX_SALTS)
        self._unsalted = FinishedAnswers(known=NO_TOKENS if files is None else files.take(""))
        self._nothing = FinishedAnswers()  # of all salts without an answer; none is added to it
        self._running: dict[int, Request] = {}
        # Of each key those that were not taken in whole, in the order of their turns.
        self._unindexed: OrderedDict[str, deque[FinishedAnswers]] = OrderedDict()

    def of_salt(self, cache_salt: str) -> FinishedAnswers:
        """The answers of a salt, to be read."""
        answers = self._known(cache_salt)
        return self._nothing if answers is None else answers

    def follow(self, batch: Batch) -> None:
        """Remember what has finished since the last step. Called before a step, by each drafter
        that reads answers."""
        self._remember_finished()
        for request in (*batch.decoding, *batch.prefill):
            self._running[request.request_id] = request
        self._take_in(STEP_TOKENS)

    def close(self) -> None:
        """Keep the last answers; idempotent."""
        self._remember_finished()
        if self._files is not None:
            self._files.close()

    def _known(self, cache_salt: str) -> FinishedAnswers | None:
        if not cache_salt:
            return self._unsalted
        answers = self._of_salt.get(key_of(cache_salt), cache_salt)
        if (
            answers is None
            and self._files is not None
            and len(kept := self._files.take(cache_salt))
        ):
            answers = self._new(cache_salt, kept)
        return answers

    def _new(self, cache_salt: str, known: np.ndarray) -> FinishedAnswers:
        answers = FinishedAnswers(known=known)
        key = key_of(cache_salt)
        forgotten = self._of_salt.put(key, cache_salt, answers)
        if forgotten is not None:
            salt, old = forgotten
            if old.num_unread:
                self._leave(key, old)
            if self._files is not None:
                self._files.forget(salt)
        return answers

    def _leave(self, key: str, answers: FinishedAnswers) -> None:
        """These wait no more to be taken in."""
        waiting = self._unindexed[key]
        waiting.remove(answers)
        if not waiting:
            del self._unindexed[key]

    def _remember_finished(self) -> None:
        for request in [request for request in self._running.values() if request.finished]:
            del self._running[request.request_id]
            if request.num_output_tokens and request.error is None:
                start = max(request.num_prompt_tokens - PROMPT_TOKENS, 0)
                self._remember(request.origin.cache_salt, request.token_ids[start:].tolist())

    def _remember(self, cache_salt: str, token_ids: list[int]) -> None:
        answers = self._known(cache_salt)
        if answers is None:
            answers = self._new(cache_salt, NO_TOKENS)
        if not answers.num_unread:
            self._unindexed.setdefault(key_of(cache_salt), deque()).append(answers)
        answers.add(token_ids)
        if self._files is not None:
            self._files.append(cache_salt, token_ids)

    def _take_in(self, num_tokens: int) -> None:
        """Keys take turns, with equal parts, and so do the salts of a key."""
        while self._unindexed and num_tokens > 0:
            key, waiting = next(iter(self._unindexed.items()))
            num_tokens -= waiting[0].index(max(1, num_tokens // len(self._unindexed)))
            self._unindexed.move_to_end(key)
            waiting.rotate(-1)
            if not waiting[-1].num_unread:
                self._leave(key, waiting[-1])
