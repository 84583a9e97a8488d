"""Drafts made in vLLM's scheduler: our model-free drafters read the texts of its requests.

The scheduler knows every token. So it needs no call to a worker to get drafts, and it looks for them only in steps in
which the controller queries. Drafts are put into requests as vLLM puts those of its workers, which draft nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
from vllm.v1.outputs import DraftTokenIds

from smartspec.control import DrafterQuery, DrafterView, FreeTests
from smartspec.core.batch import Batch, Verification, no_tokens
from smartspec.core.origin import Origin
from smartspec.core.request import Request, RequestStatus
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.model_free import ModelFreeDrafter


class OwnDrafters:
    """Our drafters beside one scheduler of vLLM. Rows are vLLM's requests that decode, in the scheduler's order."""

    def __init__(self, drafters: Sequence[ModelFreeDrafter]):
        self.drafters = tuple(drafters)
        self.specs = tuple([drafter.spec for drafter in self.drafters])
        self._texts: dict[str, tuple[object, Request]] = {}  # vLLM's request, and what drafters read of it
        self._numbers = count()
        self._rows: list = []
        self._batch: Batch | None = None  # of a step in which drafters were queried

    def queries(self, rows: list, caps: np.ndarray, max_model_len: int) -> tuple[DrafterQuery, ...]:
        """To look for drafts after the texts of these requests. caps: int [R], longest draft of each."""
        self._rows, self._batch = rows, None
        return tuple([partial(self._query, drafter, caps, max_model_len) for drafter in self.drafters])

    def place(self, scheduler, drafter: np.ndarray, lengths: np.ndarray) -> None:
        """Put the drafts that were found into the requests. drafter, lengths: int [R], whose draft, and how much of
        it. vLLM leaves out tokens that break a request's grammar."""
        if self._batch is None or not lengths.any():
            return
        chosen: dict[str, list[int]] = {}
        for number, each in enumerate(self.drafters):
            of_each = np.where(drafter == number, lengths, 0)
            if of_each.any():
                drafts = zip(self._rows, each.draft(self._batch, of_each, None), strict=True)
                chosen |= {row.request_id: draft.token_ids.tolist() for row, draft in drafts if len(draft)}
        scheduler.update_draft_token_ids(DraftTokenIds(list(chosen), list(chosen.values())))

    def observe(
        self, drafter: np.ndarray, verified: Mapping[str, int], tokens: Mapping[str, Sequence[int]]
    ) -> tuple[FreeTests, ...]:
        """The step in which they were queried last is over. drafter: int [R], whose drafts were verified. verified:
        draft tokens by request, tokens: emitted ones. What each drafter would have been right about beside that."""
        if self._batch is None:
            return ()
        names = [row.request_id for row in self._rows]
        num_verified = np.array([verified.get(name, 0) for name in names], dtype=np.int64)
        emitted = [tuple(tokens.get(name, ())) for name in names]
        outcomes = [Verification(each, max(len(each) - 1, 0)) for each in emitted]
        tests = [
            each.observe(self._batch, np.where(drafter == number, num_verified, 0), outcomes, ())
            for number, each in enumerate(self.drafters)
        ]
        self._rows, self._batch = [], None
        return tuple(tests)

    def end(self, name: str) -> None:
        """A request of vLLM has ended: its answer may be remembered, and the request is forgotten."""
        if name in self._texts:
            request, text = self._texts.pop(name)
            _catch_up(text, request)
            text.status = RequestStatus.FINISHED

    def start_over(self) -> None:
        """Forget all requests."""
        for name in list(self._texts):
            self.end(name)
        self._rows, self._batch = [], None

    def _query(self, drafter: ModelFreeDrafter, caps: np.ndarray, max_model_len: int, is_queried: bool) -> DrafterView:
        if not is_queried:
            return DrafterView(no_tokens(len(caps)))
        if self._batch is None:
            self._batch = Batch(decoding=tuple([self._text(row, max_model_len) for row in self._rows]))
            for each in self.drafters:
                each.begin_step(self._batch)
        found = drafter.view(self._batch)
        return replace(found, lengths=np.minimum(found.lengths, caps))

    def _text(self, request, max_model_len: int) -> Request:
        """What drafters read of a request, with all its tokens."""
        known, text = self._texts.get(request.request_id, (None, None))
        if known is not request or text.num_tokens > request.num_tokens:
            room = max(min(request.max_tokens, max_model_len - request.num_prompt_tokens), 1)
            prompt = request.all_token_ids[: request.num_prompt_tokens]
            origin = Origin(cache_salt=f" {request.cache_salt}" if request.cache_salt else "")  # of no key
            text = Request(next(self._numbers), prompt, SamplingParams(max_tokens=room), seed=0, origin=origin)
            self._texts[request.request_id] = request, text
        _catch_up(text, request)
        return text


def _catch_up(text: Request, request) -> None:
    text.append(request.all_token_ids[text.num_tokens :])
