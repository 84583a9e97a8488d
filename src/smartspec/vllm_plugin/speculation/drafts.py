"""Drafts in vLLM's scheduler: those of our model-free drafters, and what vLLM's workers leave out
then.

The scheduler knows every token. So our drafters need no call to a worker, and they look for drafts
only in steps in which the controller queries. Drafts are put into requests as vLLM puts those of
its workers, which draft nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
from vllm.v1.outputs import DraftTokenIds

from smartspec.control import DrafterQuery, DrafterView, FreeTests
from smartspec.core.batch import Batch, Verification, no_tokens
from smartspec.core.origin import Origin
from smartspec.core.request import Request, RequestStatus
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import HEADER, Datastore, read_header
from smartspec.drafters.drafter_names import (
    MODEL_FREE_DRAFTERS,
    READERS,
    is_model_free,
    model_free_drafter,
)
from smartspec.drafters.model_free import ModelFreeDrafter
from smartspec.drafters.tokenizer_digest import quick_digest
from smartspec.vllm_plugin.compatibility import attribute_problem, signature_problem
from smartspec.vllm_plugin.needs import Need
from smartspec.vllm_plugin.settings import Settings

DEFAULT = "prompt-lookup,datastore"
_MODELS = find_spec("smartspec_models")  # a package of its own, which a server may lack
SHIPPED = Path((_MODELS and _MODELS.origin) or __file__).parent / "datastores"
# vLLM verifies chains, and its requests have no predicted output
NOT_HERE = ("ngram-tree", "prediction")


class OwnDrafters:
    """Our drafters in one scheduler of vLLM. Rows are vLLM's requests that decode, in the
    scheduler's order."""

    def __init__(self, drafters: Sequence[ModelFreeDrafter]):
        self.drafters = tuple(drafters)
        self.specs = tuple([drafter.spec for drafter in self.drafters])
        # vLLM's request, and its text for drafters
        self._texts: dict[str, tuple[object, Request]] = {}
        self._numbers = count()
        self._rows: list = []
        self._batch: Batch | None = None  # of a step in which drafters were queried

    def queries(self, rows: list, caps: np.ndarray, max_model_len: int) -> tuple[DrafterQuery, ...]:
        """Return queries that look for drafts after these requests' texts. caps: int [R], longest
        draft of each."""
        self._rows, self._batch = rows, None
        query = partial(self._query, caps, max_model_len)
        return tuple([partial(query, drafter) for drafter in self.drafters])

    def place(self, scheduler, drafter: np.ndarray, lengths: np.ndarray) -> None:
        """Put drafts into the requests. drafter: int [R], whose draft each gets. lengths: int [R],
        tokens of it. vLLM leaves out tokens that break a request's grammar."""
        if self._batch is None or not lengths.any():
            return
        chosen: dict[str, list[int]] = {}
        for number, each in enumerate(self.drafters):
            of_each = np.where(drafter == number, lengths, 0)
            if of_each.any():
                drafts = zip(self._rows, each.draft(self._batch, of_each, None), strict=True)
                chosen |= {
                    row.request_id: draft.token_ids.tolist() for row, draft in drafts if len(draft)
                }
        scheduler.update_draft_token_ids(DraftTokenIds(list(chosen), list(chosen.values())))

    def observe(
        self, drafter: np.ndarray, verified: Mapping[str, int], tokens: Mapping[str, Sequence[int]]
    ) -> tuple[FreeTests, ...]:
        """Learn from the last step with queries, and return free tests of each drafter: on drafts
        that it had, and that were not verified. drafter: int [R], whose drafts were verified.
        verified: draft tokens by request. tokens: emitted ones."""
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
        """Forget a request of vLLM that has ended. Its answer may be remembered."""
        if name in self._texts:
            request, text = self._texts.pop(name)
            _catch_up(text, request)
            text.status = RequestStatus.FINISHED

    def start_over(self) -> None:
        """Forget all requests."""
        for name in list(self._texts):
            self.end(name)
        self._rows, self._batch = [], None

    def _query(
        self, caps: np.ndarray, max_model_len: int, drafter: ModelFreeDrafter, is_queried: bool
    ) -> DrafterView:
        if not is_queried:
            return DrafterView(no_tokens(len(caps)))
        if self._batch is None:
            self._batch = Batch(
                decoding=tuple([self._text(row, max_model_len) for row in self._rows])
            )
            for each in self.drafters:
                each.begin_step(self._batch)
        view = drafter.view(self._batch)
        return replace(view, lengths=np.minimum(view.lengths, caps))

    def _text(self, request, max_model_len: int) -> Request:
        """Return a request as drafters read it, with all its tokens."""
        known, text = self._texts.get(request.request_id, (None, None))
        if known is not request or text.num_tokens > request.num_tokens:
            room = max(min(request.max_tokens, max_model_len - request.num_prompt_tokens), 1)
            prompt = request.all_token_ids[: request.num_prompt_tokens]
            # of no key
            origin = Origin(cache_salt=f" {request.cache_salt}" if request.cache_salt else "")
            text = Request(
                next(self._numbers), prompt, SamplingParams(max_tokens=room), seed=0, origin=origin
            )
            self._texts[request.request_id] = request, text
        _catch_up(text, request)
        return text


def _catch_up(text: Request, request) -> None:
    text.append(request.all_token_ids[text.num_tokens :])


def make_drafters(vllm_config, settings: Settings, max_draft_tokens: int) -> OwnDrafters:
    """Return the drafters of the settings. ValueError names an unknown drafter, or a datastore that
    does not fit."""
    names = [name.strip() for name in (settings.drafter or DEFAULT).split(",")]
    for name in names:
        if name in NOT_HERE or not is_model_free(name):
            known = ", ".join(name for name in MODEL_FREE_DRAFTERS if name not in NOT_HERE)
            raise ValueError(
                f"setting 'drafter': {name!r} does not draft in the scheduler, use some of {known}"
            )
    datastore = (
        find_datastore(vllm_config.model_config, settings) if {*names} & {*READERS} else None
    )
    memory = AnswerMemory()
    return OwnDrafters(
        [model_free_drafter(name, max_draft_tokens, datastore, memory) for name in names]
    )


def find_datastore(model_config, settings: Settings) -> Datastore | None:
    """Return the datastore of the settings; without a name one that comes with SmartSpec, if one
    fits. ValueError where a datastore of a name does not fit."""
    if settings.datastore == "none":
        return None
    vocab_size = model_config.get_vocab_size()
    if settings.datastore is not None:
        datastore = Datastore(Path(settings.datastore).expanduser())
        datastore.check_for(_tokenizer_digest(model_config), vocab_size, str(model_config.model))
        return datastore
    for folder in [path.parent for path in SHIPPED.glob(f"*/{HEADER}")]:
        header = read_header(folder)
        if header.vocab_size == vocab_size and header.tokenizer == _tokenizer_digest(model_config):
            return Datastore(folder)
    return None


def _tokenizer_digest(model_config) -> str:
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    return "" if tokenizer is None else quick_digest(tokenizer)


def leave_out_speculation(worker, expected: Need) -> str | None:
    """Let a worker of vLLM do steps without drafts as if no speculation were configured: it
    prepares less, and uses the plain sampler. If its runner is not as expected, nothing changes.
    Return the problem, None without one."""
    runner = worker.model_runner
    problem = signature_problem(type(runner), expected) or attribute_problem(runner, expected)
    if problem is not None:
        return problem
    if runner.model_config.is_hybrid:
        return "the model has states, whose place depends on accepted drafts"
    execute_model, speculation = runner.execute_model, runner.speculative_config

    def execute_step(scheduler_output, *arguments, **options):
        # Sampling, which follows, reads it too.
        has_drafts = bool(scheduler_output.scheduled_spec_decode_tokens)
        runner.speculative_config = speculation if has_drafts else None
        return execute_model(scheduler_output, *arguments, **options)

    runner.execute_model = execute_step
    return None
