"""One simulated run: what is served, on what, by which policy."""

from dataclasses import dataclass, field

from smartspec.control import DrafterSpec
from smartspec.control.goodput.policy import GoodputSettings
from smartspec.core.own_class import is_own_class
from smartspec.core.speculation import MAX_TPOT_SECONDS
from smartspec.drafters.drafter_names import is_model_free, model_free_drafter
from smartspec.sim.executor import HEAD, LOOKUP, MODEL
from smartspec.sim.settings import LATER_CHILD_SHARE, ScenarioSettings
from smartspec.sim.world.step_time import ControllerSeconds
from smartspec.workload.arrivals import check_rate

DRAFTERS = {"model": MODEL, "head": HEAD, "lookup": LOOKUP}
DRAFTINGS = ("serial", "parallel", "layer-parallel")
_READERS = "prompt-lookup, recycling or module:Class"


@dataclass(frozen=True)
class Scenario(ScenarioSettings):
    """A simulated run: its settings, the policy that decides, and the seed of all that is random.

    policy: as in policy_names, TOLD ones too. goodput: values of the policy of that name. tagged:
    requests name their class to the engine.
    tpot_targets, ttft_target: in seconds. trace, and hardware or acceptance that end in .json or
    .jsonl: paths. num_requests: a trace starts over as often as that takes. host_seconds, throttle,
    controller_seconds (measured by controller_time): see GroundTruthTime. profile: see
    GroundTruthTime.profile.
    """

    max_model_len: int = 131072
    tagged: bool = False
    controller_seconds: ControllerSeconds = ()
    seed: int = 0
    goodput: GoodputSettings = field(default_factory=GoodputSettings)

    def __post_init__(self):
        sources = {"rate": self.rate, "trace": self.trace, "batch": self.batch}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of rate, trace and batch, got {' and '.join(given) or 'none'}"
            )
        if self.seconds is not None and self.batch is not None:
            raise ValueError("seconds cuts arrivals, and a batch has none: give num_requests")
        self._check_drafter()
        self._check_drafting()
        if self.host != "plain" and self.is_measured:
            raise ValueError(
                f"host {self.host} is for named hardware, and {self.hardware} is measured: leave "
                "it out"
            )
        if self.draft_model is not None and not self.has_model:
            raise ValueError(
                f"draft_model {self.draft_model} is not used by drafter {self.drafter}: leave it "
                "out"
            )
        if self.draft_tensor_parallel is not None and (not self.has_model or self.is_measured):
            raise ValueError(
                f"draft_tensor_parallel {self.draft_tensor_parallel} is for a draft model on named "
                "hardware: omit it"
            )
        if self.later_child_share != LATER_CHILD_SHARE and self.drafter != "head":
            raise ValueError(
                f"later_child_share {self.later_child_share:g} is for drafter head, which makes "
                "trees: leave it out"
            )
        if self.found_share != 1 and (self.drafter != "lookup" or is_log(self.acceptance)):
            raise ValueError(
                f"found_share {self.found_share:g} is for drafter lookup without a decision log: "
                "leave it out"
            )
        if self.time_scale != 1 and self.trace is None:
            raise ValueError(
                f"time_scale {self.time_scale:g} is for a trace, and there is none: leave it out"
            )
        if self.rate is not None:
            check_rate(self.rate)
        if not all(0 < target <= MAX_TPOT_SECONDS for target in self.tpot_targets):
            raise ValueError(
                f"tpot_targets must be in (0, {MAX_TPOT_SECONDS:g}], got {self.tpot_targets}"
            )
        if self.ttft_target is not None and not 0 < self.ttft_target <= MAX_TPOT_SECONDS:
            raise ValueError(
                f"ttft_target must be in (0, {MAX_TPOT_SECONDS:g}], got {self.ttft_target}"
            )
        self.check_limits()

    def _check_drafter(self) -> None:
        if self.drafter in DRAFTERS:
            if self.texts is not None:
                raise ValueError(
                    f"texts {self.texts} are not for drafter {self.drafter}: use {_READERS}"
                )
        elif is_own_class(self.drafter) and not is_model_free(self.drafter):
            raise ValueError(
                f"drafter {self.drafter!r} needs a model, and the simulator runs none: use drafter "
                "model or head, with hardware and acceptance from the decision log of a server "
                "that runs it"
            )
        elif not is_model_free(self.drafter):
            raise ValueError(
                f"unknown drafter {self.drafter!r}: use {', '.join(DRAFTERS)}, or with texts "
                f"{_READERS}"
            )
        elif self.texts is None:
            raise ValueError(
                f"drafter {self.drafter!r} drafts from texts: give a file of texts, or use drafter "
                "lookup"
            )

    def _check_drafting(self) -> None:
        if self.drafting not in DRAFTINGS:
            raise ValueError(f"unknown drafting {self.drafting!r}: use {', '.join(DRAFTINGS)}")
        is_recorded = self.is_measured or is_log(self.acceptance)
        if self.is_layer_parallel and (
            self.drafter != "model" or is_recorded or self.draft_devices == 1
        ):
            raise ValueError(
                "drafting layer-parallel is for drafter model on several devices of named "
                "hardware, with an acceptance that is no log: give tensor_parallel or "
                "draft_tensor_parallel above 1"
            )
        if self.is_parallel and (
            self.drafter != "model" or (self.draft_model is None and not self.is_measured)
        ):
            raise ValueError(
                "drafting parallel needs a draft model that reads nothing of the target's pass: "
                "use drafter model and give a draft_model, such as llama-3.2-1b"
            )
        if self.is_parallel and self.draft_tensor_parallel is not None:
            raise ValueError(
                f"draft_tensor_parallel {self.draft_tensor_parallel}: with drafting parallel the "
                "draft model has one device of its own: leave it out"
            )

    @property
    def is_layer_parallel(self) -> bool:
        """True if layers of the draft model run side by side."""
        return self.drafting == "layer-parallel"

    @property
    def draft_devices(self) -> int:
        """Devices of the draft model."""
        return 1 if self.is_parallel else self.draft_tensor_parallel or self.tensor_parallel

    @property
    def is_parallel(self) -> bool:
        """True if drafts are made while the target verifies."""
        return self.drafting == "parallel"

    @property
    def has_model(self) -> bool:
        """True if drafts are made in passes."""
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
        """True if hardware is a file of measured curves."""
        return self.hardware.endswith((".json", ".jsonl"))


def is_log(path: str) -> bool:
    """True if that path is one of a decision log."""
    return path.endswith(".jsonl")
