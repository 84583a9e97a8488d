"""One simulated run: what is served, on what, by which policy."""

from dataclasses import dataclass, field

from smartspec.control.goodput.settings import GoodputSettings
from smartspec.control.own_class import is_own_class
from smartspec.control.records import DrafterSpec
from smartspec.core.speculation import MAX_TPOT_SECONDS
from smartspec.drafters.drafter_names import is_model_free, model_free_drafter
from smartspec.sim.executor import HEAD, LOOKUP, MODEL, SIBLING_SHARE
from smartspec.sim.fleet import ROUTERS
from smartspec.sim.setting_limits import check_limits
from smartspec.sim.time_truth import ControllerSeconds
from smartspec.workload.arrivals import check_rate

DRAFTERS = {"model": MODEL, "head": HEAD, "lookup": LOOKUP}
_READERS = "prompt-lookup, recycling or module:Class"


@dataclass(frozen=True)
class Scenario:
    """A simulated run. Exactly one of rate, trace and batch says how requests come.

    policy: as in policies.names, or perfect-estimates. goodput: values of the policy of that name. hardware: an
    accelerator (hardware.ACCELERATORS), a JSON file of curves (LatencyModel.to_dict), or a decision log, ending in
    .jsonl, for the profile it begins with. model: a shape (hardware.MODEL_SHAPES), 8b or 70b for short. drafter: model,
    head (which makes trees too), lookup, or with texts a drafter without a model: a name of drafter_names or
    module:Class. draft_model: a shape; None takes an EAGLE head of the model.
    draft_tensor_parallel: devices it runs on; None for as many as the target. acceptance: see class_spec, or the path
    of a decision log, ending in .jsonl: request i meets what the log's request i mod N met. texts: path of a file of
    texts, see text_truth, in which the drafter drafts: request i has the lengths of text i mod N, and acceptance is not
    looked at. sibling_share: of the cases
    that a node's elder siblings leave, those in which it is right. found_share: share of output positions at which
    lookup finds a draft.
    tagged: requests name their acceptance class to the engine. tpot_targets: seconds per output token that requests
    want, in turn. ttft_target: seconds to the first token that all want. kv_tokens: None takes what the devices' memory
    holds. captured_graphs: passes are padded to sizes of captured graphs.

    rate: Poisson requests per second. batch: so many requests are always under way. num_requests: a trace starts over
    as often as that takes; None takes it once, without a trace 1000 requests, or all that arrive at that rate before
    seconds. seconds: only requests that arrive before.
    prompt_tokens, output_tokens: mean lengths, where no trace says more. host_seconds, controller_seconds (measured by
    controller_time), throttle: see TimeTruth. profile: what is wrong with the start-up profile, see TimeTruth.profile.
    """

    policy: str = "goodput"
    hardware: str = "h100"
    model: str = "8b"
    tensor_parallel: int = 1
    drafter: str = "model"
    draft_model: str | None = None
    draft_tensor_parallel: int | None = None
    acceptance: str = "0.7"
    texts: str | None = None
    sibling_share: float = SIBLING_SHARE
    found_share: float = 1.0
    tagged: bool = False
    tpot_targets: tuple[float, ...] = ()
    ttft_target: float | None = None
    max_draft_tokens: int = 8
    max_batch: int = 256
    max_batched_tokens: int = 2048
    max_model_len: int = 131072
    kv_tokens: int | None = None
    captured_graphs: bool = False
    rate: float | None = None
    trace: str | None = None
    time_scale: float = 1.0
    batch: int | None = None
    num_requests: int | None = None
    seconds: float | None = None
    prompt_tokens: int = 512
    output_tokens: int = 200
    replicas: int = 1
    router: str = "least-loaded"
    host_seconds: float = 0.001
    controller_seconds: ControllerSeconds = ()
    jitter: float = 0.02
    profile: float | str = 1.0
    throttle: tuple[tuple[float, float], ...] = ()
    seed: int = 0
    goodput: GoodputSettings = field(default_factory=GoodputSettings)

    def __post_init__(self):
        sources = {"rate": self.rate, "trace": self.trace, "batch": self.batch}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of rate, trace and batch, got {' and '.join(given) or 'none'}")
        if self.seconds is not None and self.batch is not None:
            raise ValueError("seconds cuts arrivals, and a batch has none: give num_requests")
        self._check_drafter()
        if self.router not in ROUTERS:
            raise ValueError(f"unknown router {self.router!r}: use one of {', '.join(ROUTERS)}")
        if self.draft_model is not None and not self.has_model:
            raise ValueError(f"draft_model {self.draft_model} is not used by drafter {self.drafter}: leave it out")
        if self.draft_tensor_parallel is not None and (not self.has_model or self.is_measured):
            raise ValueError(
                f"draft_tensor_parallel {self.draft_tensor_parallel} is for a draft model on named hardware: omit it"
            )
        if self.sibling_share != SIBLING_SHARE and self.drafter != "head":
            raise ValueError(
                f"sibling_share {self.sibling_share:g} is for drafter head, which makes trees: leave it out"
            )
        if self.found_share != 1 and (self.drafter != "lookup" or is_log(self.acceptance)):
            raise ValueError(
                f"found_share {self.found_share:g} is for drafter lookup without a decision log: leave it out"
            )
        if self.time_scale != 1 and self.trace is None:
            raise ValueError(f"time_scale {self.time_scale:g} is for a trace, and there is none: leave it out")
        if self.rate is not None:
            check_rate(self.rate)
        if not all(0 < target <= MAX_TPOT_SECONDS for target in self.tpot_targets):
            raise ValueError(f"tpot_targets must be in (0, {MAX_TPOT_SECONDS:g}], got {self.tpot_targets}")
        if self.ttft_target is not None and not 0 < self.ttft_target <= MAX_TPOT_SECONDS:
            raise ValueError(f"ttft_target must be in (0, {MAX_TPOT_SECONDS:g}], got {self.ttft_target}")
        check_limits(vars(self))

    def _check_drafter(self) -> None:
        if self.drafter in DRAFTERS:
            if self.texts is not None:
                raise ValueError(f"texts {self.texts} are not for drafter {self.drafter}: use {_READERS}")
        elif is_own_class(self.drafter) and not is_model_free(self.drafter):
            raise ValueError(
                f"drafter {self.drafter!r} needs a model, and the simulator runs none: use drafter model or head, with "
                "hardware and acceptance from the decision log of a server that runs it"
            )
        elif not is_model_free(self.drafter):
            raise ValueError(f"unknown drafter {self.drafter!r}: use {', '.join(DRAFTERS)}, or with texts {_READERS}")
        elif self.texts is None:
            raise ValueError(f"drafter {self.drafter!r} drafts from texts: give a file of texts, or use drafter lookup")

    @property
    def has_model(self) -> bool:
        """Whether drafts are made in passes."""
        return self.drafter_spec.has_passes

    @property
    def drafter_spec(self) -> DrafterSpec:
        if self.drafter in DRAFTERS:
            return DRAFTERS[self.drafter]
        return model_free_drafter(self.drafter, self.max_draft_tokens).spec

    @property
    def served_drafter(self) -> DrafterSpec | None:
        """The drafter of a run: none for the policy off, as in the engine."""
        return None if self.policy == "off" else self.drafter_spec

    @property
    def is_measured(self) -> bool:
        """Whether hardware is a file of measured curves."""
        return self.hardware.endswith((".json", ".jsonl"))


def is_log(path: str) -> bool:
    """Whether that path is one of a decision log."""
    return path.endswith(".jsonl")
