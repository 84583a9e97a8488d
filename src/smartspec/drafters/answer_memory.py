"""What drafters remember of finished requests, by cache salt; in files, too, where there is a folder for them."""

from collections import OrderedDict

from smartspec.core.batch import Batch
from smartspec.core.request import Request
from smartspec.drafters.answer_files import AnswerFiles
from smartspec.drafters.finished_answers import NO_TOKENS, PROMPT_TOKENS, FinishedAnswers
from smartspec.drafters.recycling import MAX_SALTS

STEP_TOKENS = 256  # that are taken in before a step: a tenth of a millisecond


class AnswerMemory:
    """Answers by salt. The drafters of an engine share it, so that each answer is remembered once.

    files: where answers are kept over restarts, None for nowhere. Beyond MAX_SALTS, beside the one of requests without
    a salt, the longest unused is forgotten.
    """

    def __init__(self, files: AnswerFiles | None = None):
        self._files = files
        self._of_salt: OrderedDict[str, FinishedAnswers] = OrderedDict()
        self._running: dict[int, Request] = {}

    def of_salt(self, cache_salt: str) -> FinishedAnswers:
        if cache_salt not in self._of_salt:
            known = NO_TOKENS if self._files is None else self._files.take(cache_salt)
            self._of_salt[cache_salt] = FinishedAnswers(known=known)
            others = [salt for salt in self._of_salt if salt]
            if len(others) > MAX_SALTS:
                self._forget(others[0])
        self._of_salt.move_to_end(cache_salt)
        return self._of_salt[cache_salt]

    def follow(self, batch: Batch) -> None:
        """Remember what has finished since the last step. Called before a step, by each drafter that reads answers."""
        self._remember_finished()
        for request in (*batch.decoding, *batch.prefill):
            self._running[request.request_id] = request
        for answers in self._of_salt.values():
            answers.index(STEP_TOKENS)

    def close(self) -> None:
        """Keep the last answers; idempotent."""
        self._remember_finished()
        if self._files is not None:
            self._files.close()

    def _remember_finished(self) -> None:
        for request in [request for request in self._running.values() if request.finished]:
            del self._running[request.request_id]
            if request.num_output_tokens and request.error is None:
                salt, start = request.origin.cache_salt, max(request.num_prompt_tokens - PROMPT_TOKENS, 0)
                token_ids = request.token_ids[start:].tolist()
                self.of_salt(salt).add(token_ids)
                if self._files is not None:
                    self._files.append(salt, token_ids)

    def _forget(self, cache_salt: str) -> None:
        del self._of_salt[cache_salt]
        if self._files is not None:
            self._files.forget(cache_salt)
