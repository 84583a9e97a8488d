"""What an engine is built from; every default is meant to be right for most people."""

from dataclasses import dataclass
from pathlib import Path

from smartspec.control.policy_names import parse_policy
from smartspec.drafters.drafter_names import READERS, is_model_free
from smartspec.engine.drafting.exit_names import is_exit
from smartspec.engine.drafting.self_names import is_self_draft
from smartspec.engine.drafting.shipped_datastore import NONE, datastore_folder
from smartspec.engine.drafting.shipped_head import SHIPPED, has_shipped_head

BLOCK_SIZE = 16
DIVERGENCE = "divergence"  # of Outcome.extras


@dataclass(frozen=True)
class EngineConfig:
    """model: a name, see engine.models.load. drafters: names, of drafter_names.MODEL_FREE_DRAFTERS, module:Class, of
    heads or of models, self:WINDOW, or exit:LAYER; None for the default ones.

    chat_template: name of one of the model's, or a file; None for its default.

    policy: a name, see control.policy_names; "off" is plain decoding, for which no drafter is made.

    max_model_len: most tokens of one request, None for the model's own limit. kv_tokens: KV memory in tokens over all
    requests, None for max_batch requests of 1024 tokens. max_batched_tokens: ordinary tokens fed per step.
    max_draft_tokens: K, the longest draft. max_queue: requests that may wait; max_queue_per_client: of
    one client, None for half of them. datastore: folder of what READERS draft from, None for the one that comes with
    the model, "none" for none. datastore_memory: folder where finished answers are kept, which they draft from, too;
    None for nowhere. decision_log: file for decision records,
    None for none. forced_acceptance: chance of every draft token to be accepted, whatever the target says, so that
    text is invalid; None for verification by the target. strict: failures of the controller, and input to it that
    cannot be true, raise (for tests); otherwise they are counted and the engine serves on.

    Raises ValueError naming the option and the value.
    """

    model: str = "smollm2-135m-instruct"
    chat_template: str | None = None
    drafters: tuple[str, ...] | None = None
    policy: str = "goodput"
    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "auto"
    activations: str = "auto"
    max_batch: int = 32
    max_model_len: int | None = None
    kv_tokens: int | None = None
    max_batched_tokens: int = 512
    max_draft_tokens: int = 10
    max_queue: int = 1024
    max_queue_per_client: int | None = None
    datastore: str | None = None
    datastore_memory: Path | None = None
    decision_log: Path | None = None
    forced_acceptance: float | None = None
    strict: bool = False

    def __post_init__(self):
        if self.drafters is None:
            object.__setattr__(self, "drafters", self._default_drafters())
        for name in ("max_batch", "max_batched_tokens", "max_draft_tokens", "max_queue"):
            _require_positive(name, getattr(self, name))
        for name in ("max_model_len", "kv_tokens", "max_queue_per_client"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        if self.max_batched_tokens < self.max_batch:
            raise ValueError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be at least max_batch ({self.max_batch})"
            )
        for name in self.drafters or ():
            if not is_self_draft(name) and not is_exit(name):
                is_model_free(name)  # raises where a class of one's own cannot be had
        if unknown := [need for need in self._needs if need != DIVERGENCE]:
            raise ValueError(
                f"policy {self.policy!r} needs {', '.join(unknown)}, which this engine does not measure: use another"
            )
        if self.forced_acceptance is not None:
            self._check_forced(self.forced_acceptance)
        given = {"datastore": self.datastore not in (None, NONE), "datastore_memory": self.datastore_memory is not None}
        if unread := [name for name, is_given in given.items() if is_given and not {*READERS} & {*self.drafters}]:
            raise ValueError(
                f"{unread[0]} {str(getattr(self, unread[0]))!r} is read by no drafter of {', '.join(self.drafters)}: "
                f"add {' or '.join(READERS)}"
            )

    def _default_drafters(self) -> tuple[str, ...]:
        """Those without a model; and the head that comes with the model where its weights are not in blocks: a pass
        over those is so short that on a CPU the head's passes, and planning them, take what they bring."""
        has_texts = datastore_folder(self.datastore, self.model) is not None or self.datastore_memory is not None
        has_head = self.quantization == "none" and has_shipped_head(self.model)
        return ("prompt-lookup", "recycling", "prediction", *(["datastore"] * has_texts), *([SHIPPED] * has_head))

    def _check_forced(self, acceptance: float) -> None:
        if not 0 <= acceptance <= 1:
            raise ValueError(f"forced_acceptance is {acceptance}: it is a chance, give a number from 0 to 1")
        if self.datastore_memory is not None:
            raise ValueError(
                "forced_acceptance makes invalid text, and datastore_memory would keep it: leave one of them out"
            )

    @property
    def _needs(self) -> tuple[str, ...]:
        return parse_policy(self.policy, self.max_draft_tokens).needs

    @property
    def measures_divergence(self) -> bool:
        """Whether the policy wants to know how far drafts are from the target's distributions, which takes time."""
        return DIVERGENCE in self._needs

    @property
    def active_drafters(self) -> tuple[str, ...]:
        """Those that run: none where the policy never drafts."""
        return () if self.policy == "off" else self.drafters

    @property
    def queue_per_client(self) -> int:
        """max_queue_per_client, with its default."""
        return self.max_queue_per_client or max(1, self.max_queue // 2)

    @property
    def draft_models(self) -> tuple[str, ...]:
        """Those with passes: models, trained heads, classes of one's own that draft with a model."""
        return tuple(name for name in self.active_drafters if not is_model_free(name))


def parse_drafters(text: str) -> tuple[str, ...]:
    """ "prompt-lookup,MODEL" -> ("prompt-lookup", "MODEL"); "none" or "" -> (). Raises ValueError on an empty name."""
    if text in ("", "none"):
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) != len(names):
        raise ValueError(f"drafter must be names separated by commas, each once, got {text!r}")
    return names


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
