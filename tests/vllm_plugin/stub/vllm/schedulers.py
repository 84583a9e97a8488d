"""A scheduler that feeds tokens the way vLLM's does: one text per request, of which some tokens
have been computed."""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

from vllm.v1.outputs import DraftTokenIds


class Request:
    def __init__(self, request_id: str, prompt: list[int], max_tokens: int, sampling_params=None):
        self.request_id, self.tokens, self.max_tokens = request_id, list(prompt), max_tokens
        self.num_prompt_tokens, self.sampling_params = len(prompt), sampling_params
        self.num_computed_tokens = self.num_output_placeholders = self.num_stale_output_tokens = 0
        self.spec_token_ids: list[int] = []
        self.cache_salt: str | None = None

    @property
    def all_token_ids(self) -> list[int]:
        return self.tokens

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, list[int]]
    finished_req_ids: set[str]
    num_spec_tokens_to_schedule: int
    num_invalid_spec_tokens: dict[str, int] | None = None

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass
class ModelRunnerOutput:
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]] = field(default_factory=list)


class Scheduler:
    def __init__(self, vllm_config, **options):
        self.vllm_config, self.cache_config = vllm_config, vllm_config.cache_config
        self.num_spec_tokens = vllm_config.speculative_config.num_speculative_tokens
        self.dynamic_sd_lookup, self.use_v2_model_runner = None, vllm_config.use_v2_model_runner
        self.max_num_scheduled_tokens, self.max_num_running_reqs, self.max_model_len = 256, 8, 1024
        self.requests: dict[str, Request] = {}
        self.kv_cache_config = None
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        return not self.running

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        fed: dict[str, int] = {}
        drafts: dict[str, list[int]] = {}
        budget = self.max_num_scheduled_tokens
        while self.waiting and len(self.running) < self.max_num_running_reqs:
            self.running.append(self.waiting.popleft())
        for request in self.running:
            text = request.num_tokens + request.num_output_placeholders
            if (
                request.num_output_placeholders
                and text >= request.num_prompt_tokens + request.max_tokens
            ):
                continue
            n = min(text + len(request.spec_token_ids) - request.num_computed_tokens, budget)
            if n <= 0:
                continue
            num_drafts = request.num_computed_tokens + n - text
            if num_drafts > 0:
                drafts[request.request_id] = request.spec_token_ids[:num_drafts]
            request.spec_token_ids = []
            fed[request.request_id] = n
            budget -= n
        length = (
            self.num_spec_tokens
            if self.dynamic_sd_lookup is None
            else self.dynamic_sd_lookup[len(fed)]
        )
        output = SchedulerOutput(fed, drafts, self.finished_req_ids, length)
        self._update_after_schedule(output)
        return output

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        for name, n in scheduler_output.num_scheduled_tokens.items():
            self.requests[name].num_computed_tokens += n
        self.finished_req_ids = set()

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> None:
        """There are no grammars."""

    def update_from_output(
        self, scheduler_output, model_runner_output
    ) -> dict[int, SimpleNamespace]:
        emitted = []
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None:
                continue
            sampled = model_runner_output.sampled_token_ids[
                model_runner_output.req_id_to_index[name]
            ]
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(name, [])
            if drafts:
                self._reject(request, len(drafts) - (len(sampled) - 1))
            self._append(request, sampled)
            emitted.append(SimpleNamespace(request_id=name, new_token_ids=sampled))
            if request.num_output_tokens >= request.max_tokens:
                self.finish(name)
        return {0: SimpleNamespace(outputs=emitted)}

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        for name, tokens in zip(
            draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False
        ):
            if name in self.requests:
                self.requests[name].spec_token_ids = tokens

    def finish(self, name: str) -> None:
        request = self.requests.pop(name)
        self.running = [other for other in self.running if other is not request]
        self.finished_req_ids.add(name)

    def shutdown(self) -> None:
        """There is nothing to close."""

    def has_unfinished_requests(self) -> bool:
        return bool(self.running or self.waiting)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def get_kv_cache_usage(self) -> float:
        return (
            sum(r.num_computed_tokens for r in self.running) / 16 / self.cache_config.num_gpu_blocks
        )

    def _reject(self, request: Request, num_rejected: int) -> None:
        request.num_computed_tokens -= num_rejected

    def _append(self, request: Request, sampled: list[int]) -> None:
        del sampled[request.max_tokens - request.num_output_tokens :]
        request.tokens.extend(sampled)


class AsyncScheduler(Scheduler):
    """The next step is scheduled before this one's tokens are known: placeholders stand for
    them."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        placeholders = [-1] * scheduler_output.num_spec_tokens_to_schedule
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            if request.num_computed_tokens >= request.num_tokens + request.num_output_placeholders:
                request.num_output_placeholders += 1 + len(
                    scheduler_output.scheduled_spec_decode_tokens.get(name, [])
                )
                request.spec_token_ids = placeholders

    def _reject(self, request: Request, num_rejected: int) -> None:
        super()._reject(request, num_rejected)
        request.num_output_placeholders -= num_rejected

    def _append(self, request: Request, sampled: list[int]) -> None:
        request.num_output_placeholders -= len(sampled)
        super()._append(request, sampled)
