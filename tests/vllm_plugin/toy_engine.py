"""vLLM's engine loop around a scheduler, with a model whose text and whose time are known."""

from collections import deque
from types import SimpleNamespace

import numpy as np
from prometheus_client import REGISTRY
from vllm.schedulers import AsyncScheduler, ModelRunnerOutput, Request, Scheduler
from vllm.v1.outputs import DraftTokenIds

from smartspec import vllm_plugin
from smartspec.vllm_plugin.compatibility import SCHEDULER
from smartspec.vllm_plugin.step.adaptive import COSTS

VOCABULARY = 1000
FULL_GRAPHS = SimpleNamespace(has_full_cudagraphs=lambda: True)


def make_config(
    tmp_path, *, method="ngram", is_async=False, num_speculative_tokens=4, settings=None, **changes
):
    """A configuration as far as the plugin reads it. changes: of any of its parts, by the name of
    the attribute."""
    parts = {
        "speculative_config": SimpleNamespace(
            method=method,
            num_speculative_tokens=num_speculative_tokens,
            model="draft",
            enable_adaptive_verification=False,
            parallel_drafting=False,
            num_speculative_tokens_per_batch_size=None,
            draft_sample_method="greedy",
        ),
        "parallel_config": SimpleNamespace(
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
            data_parallel_size=1,
            data_parallel_index=0,
            distributed_executor_backend=None,
        ),
        "model_config": SimpleNamespace(
            model="toy", dtype="float32", quantization=None, enforce_eager=True, is_moe=False
        ),
        "compilation_config": SimpleNamespace(cudagraph_mode=None, cudagraph_capture_sizes=None),
        "cache_config": SimpleNamespace(num_gpu_blocks=1000, block_size=16),
    }  # fmt: skip
    for name, value in changes.items():
        part = next(part for part in parts.values() if hasattr(part, name))
        setattr(part, name, value)
    stock = AsyncScheduler if is_async else Scheduler
    return SimpleNamespace(
        additional_config={
            "smartspec": {"cache": str(tmp_path / "cache"), "metrics_seconds": 0} | (settings or {})
        },
        scheduler_config=SimpleNamespace(
            scheduler_cls="ours",
            get_scheduler_cls=lambda: stock,
            max_num_batched_tokens=256,
            async_scheduling=is_async,
        ),
        instance_id="toy",
        use_v2_model_runner=False,
        **parts,
    )


def front_end(config, scheduler_cls: str | None = SCHEDULER) -> SimpleNamespace:
    """The same configuration as the process sees it that serves HTTP."""
    changes = {"scheduler_config": SimpleNamespace(scheduler_cls=scheduler_cls)}
    return SimpleNamespace(**vars(config) | changes)


def metric(name: str, engine: str = "0", **labels: str) -> float | None:
    """What that process shows."""
    return REGISTRY.get_sample_value(f"smartspec_{name}", {"engine": engine} | labels)


class ToyEngine:
    """Runs steps until all requests have ended, and checks that each has got its own text.
    acceptance: chance that a draft token is right. seconds: of a pass, of a token in it, of a draft
    pass. admits: called with each output of the scheduler, of the model, and how many drafts
    of each request were verified, by chance, as if by adaptive verification; None without. costs:
    those that came with steps."""

    def __init__(
        self,
        scheduler,
        *,
        acceptance=0.7,
        seconds=(0.02, 0.001, 0.002),
        seed=0,
        admits=None,
    ):
        self.admits, self.costs = admits, []
        self.scheduler, self.acceptance, self.seconds = scheduler, acceptance, seconds
        speculation = scheduler.vllm_config.speculative_config
        self.has_passes = speculation.method == "draft_model"  # of a model, to make drafts
        self.texts: dict[str, list[int]] = {}
        self.num_prompt_tokens: dict[str, int] = {}
        self.drafts: dict[str, list[int]] = {}  # the runner's own
        self.computed: dict[str, int] = {}  # tokens whose KV is right, as the runner knows it
        self.verified_lengths: list[list[int]] = []
        self.draft_lengths: list[int] = []
        self.num_decoding: list[int] = []  # requests of each step that were past their prompt
        self.now = 0.0
        self._random = np.random.default_rng(seed)
        if getattr(scheduler, "speculation", None) is not None:
            scheduler.speculation._clock = lambda: self.now
        if getattr(scheduler, "toggle", None) is not None:
            scheduler.toggle._clock = lambda: self.now

    def token(self, name: str, position: int) -> int:
        """The text of a request: what the target emits at that position, prompt included."""
        return hash((int(name), position)) % VOCABULARY

    def add(self, number: int, prompt_tokens: int, max_tokens: int, **extra_args) -> None:
        name = str(number)
        prompt = [self.token(name, position) for position in range(prompt_tokens)]
        parameters = SimpleNamespace(extra_args=extra_args or None)
        request = Request(name, prompt, max_tokens, parameters)
        self.texts[name], self.num_prompt_tokens[name] = request.tokens, prompt_tokens
        self.computed[name] = 0
        self.scheduler.add_request(request)

    def serve(self, *numbers: int, max_tokens: int, **extra_args) -> None:
        """Requests of these numbers, to their end."""
        for number in numbers:
            self.add(number, 20, max_tokens, **extra_args)
        self.run()

    def run(self, max_steps: int = 10_000) -> None:
        """Steps one after the other, or, with an asynchronous scheduler, two under way."""
        self.wait_for_files()
        self._run(max_steps)
        self.wait_for_files()

    def wait_for_files(self) -> None:
        """Let our thread of files see and write what there is."""
        if hasattr(self.scheduler, "files"):
            assert self.scheduler.files.wait()

    def _run(self, max_steps: int) -> None:
        under_way: deque = deque()
        depth = 2 if isinstance(self.scheduler, AsyncScheduler) else 1
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished_requests() and not under_way:
                assert self.texts == {name: self.expected(name) for name in self.texts}
                return
            output = self.scheduler.schedule()
            under_way.append((output, self._execute(output)))
            self.scheduler.get_grammar_bitmask(output)
            while under_way and (len(under_way) == depth or not output.num_scheduled_tokens):
                self._finish(*under_way.popleft())
        raise AssertionError(f"not done after {max_steps} steps")

    def expected(self, name: str) -> list[int]:
        return [self.token(name, position) for position in range(len(self.texts[name]))]

    def _execute(self, output) -> ModelRunnerOutput:
        sampled, admitted = [], []
        for name, n in output.num_scheduled_tokens.items():
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            end = self.computed[name] + n - len(drafts)
            admitted.append(
                len(drafts) if self.admits is None else int(self._random.integers(len(drafts) + 1))
            )
            made = self.drafts.get(name, drafts)[: admitted[-1]]  # asynchronous: placeholders
            right = [draft == self.token(name, end + i) for i, draft in enumerate(made)]
            accepted = [*right, False].index(False)
            self.computed[name] = end + accepted
            tokens = [self.token(name, end + i) for i in range(accepted + 1)]
            sampled.append(tokens if end >= self.num_prompt_tokens[name] else [])
        self.drafts = {}
        self._draft(output)
        verifying = output.scheduled_spec_decode_tokens
        fed = output.num_scheduled_tokens.items()
        self.num_decoding.append(sum(n - len(verifying.get(name, [])) == 1 for name, n in fed))
        verified = [len(drafts) for drafts in verifying.values()]
        self.verified_lengths.append(verified)
        self.draft_lengths.append(output.num_spec_tokens_to_schedule)
        result = ModelRunnerOutput(
            {name: i for i, name in enumerate(output.num_scheduled_tokens)}, sampled
        )
        if self.admits is not None:  # as our executor and vLLM's workers do
            self.costs.append(vars(output).pop(COSTS, None))
            self.admits(output, result, admitted)
            output.num_fed = output.total_num_scheduled_tokens - sum(verified) + sum(admitted)
        return result

    def _draft(self, output) -> None:
        """Make the drafts of the next step."""
        for name in output.num_scheduled_tokens:
            is_right = self._random.random(output.num_spec_tokens_to_schedule) < self.acceptance
            start = self.computed[name] + 1
            self.drafts[name] = [
                self.token(name, start + i) if right else VOCABULARY
                for i, right in enumerate(is_right.tolist())
            ]

    def _finish(self, output, model_output) -> None:
        if output.num_scheduled_tokens:
            base, per_token, per_pass = self.seconds
            passes = max(output.num_spec_tokens_to_schedule, 1) if self.has_passes else 0
            fed = getattr(output, "num_fed", output.total_num_scheduled_tokens)
            self.now += base + per_token * fed + per_pass * passes
        self.scheduler.update_from_output(output, model_output)
        if not isinstance(self.scheduler, AsyncScheduler):
            drafts = {
                name: list(draft) for name, draft in self.drafts.items() if self._decodes(name)
            }
            self.scheduler.update_draft_token_ids(
                DraftTokenIds(list(drafts), list(drafts.values()))
            )

    def _decodes(self, name: str) -> bool:
        request = self.scheduler.requests.get(name)
        return request is not None and request.num_tokens - request.num_computed_tokens == 1


def failing(*_, **__):
    """In the place of a function that does its work."""
    raise RuntimeError("enough")


def start(config, **options) -> ToyEngine:
    """An engine around our scheduler."""
    return ToyEngine(vllm_plugin.Scheduler(config), **options)


def run(config, *, acceptance=0.7, num_requests=6, max_tokens=120, **options) -> ToyEngine:
    """Requests of several lengths to their end, under our scheduler."""
    engine = start(config, acceptance=acceptance, **options)
    for number in range(num_requests):
        engine.add(number, prompt_tokens=20 + 7 * number, max_tokens=max_tokens + 5 * number)
    engine.run()
    return engine
