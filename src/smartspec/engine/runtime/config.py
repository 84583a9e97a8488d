"""The configuration of an engine; every default is meant to be right for most people."""

from dataclasses import dataclass
from pathlib import Path

from smartspec.core.policy_names import parse_policy
from smartspec.drafters.drafter_names import READERS, is_model_free, reads_texts
from smartspec.engine.drafting.shipped.datastore import NONE, datastore_folder
from smartspec.engine.drafting.shipped.head import SHIPPED, has_shipped_head

BLOCK_SIZE = 16
# Beside other requests, a prompt with more tokens takes no more of a step: everybody waits so long
# for a token. Much smaller parts are slow, as each step reads all weights.
LONG_PREFILL_TOKEN_THRESHOLD = 128


@dataclass(frozen=True)
class EngineConfig:
    """All that an engine is built from. Raises ValueError naming the option and the value."""

    model: str = "smollm2-135m-instruct"  # a name, see engine.models.load
    # "auto": what requests leave out is as the checkpoint says; "none": it is not read
    generation_config: str = "auto"
    chat_template: str | None = None  # name of one of the model's, or a file; None for its default
    # Names: of drafter_names.MODEL_FREE_DRAFTERS, module:Class, of heads or of models. None for the
    # default ones.
    drafters: tuple[str, ...] | None = None
    # a name, see core.policy_names; "off" is plain decoding, for which no drafter is made
    policy: str = "goodput"
    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "auto"
    activations: str = "auto"
    max_batch: int = 32
    max_model_len: int | None = None  # most tokens of one request, None for the model's own limit
    # KV memory in tokens of all requests, None for max_batch requests of 1024 tokens
    kv_tokens: int | None = None
    max_batched_tokens: int = 512  # ordinary tokens fed per step
    max_draft_tokens: int = 10  # K, the longest draft
    max_queue: int = 1024  # requests that may wait
    max_queue_per_client: int | None = None  # of one client, None for half of them
    # folder that drafters of texts read, None for the model's own, "none" for none
    datastore: str | None = None
    # folder that keeps finished answers, which they draft from, too
    datastore_memory: Path | None = None
    decision_log: Path | None = None  # file for decision records
    # Chance of every draft token to be accepted, whatever the target says, so that text is invalid;
    # None for verification by the target.
    forced_acceptance: float | None = None
    # Failures of the controller, and input to it that cannot be true, raise (for tests); otherwise
    # they are counted and the engine serves on.
    strict: bool = False

    def __post_init__(self):
        if self.drafters is None:
            object.__setattr__(self, "drafters", self._default_drafters())
        for name in ("max_batch", "max_batched_tokens", "max_draft_tokens", "max_queue"):
            _require_positive(name, getattr(self, name))
        for name in ("max_model_len", "kv_tokens", "max_queue_per_client"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        if self.generation_config not in ("auto", "none"):
            raise ValueError(f"generation_config is {self.generation_config!r}: use auto or none")
        if self.max_batched_tokens < self.max_batch:
            raise ValueError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be at least max_batch "
                f"({self.max_batch})"
            )
        for name in self.drafters or ():
            is_model_free(name)  # raises where a class of one's own cannot be had
        parse_policy(self.policy, self.max_draft_tokens)  # raises where there is none
        if self.forced_acceptance is not None:
            self._check_forced(self.forced_acceptance)
        given = {
            "datastore": self.datastore not in (None, NONE),
            "datastore_memory": self.datastore_memory is not None,
        }
        unread = [name for name, is_given in given.items() if is_given]
        if unread and not any(map(reads_texts, self.drafters)):
            raise ValueError(
                f"{unread[0]} {str(getattr(self, unread[0]))!r} is read by no drafter of "
                f"{', '.join(self.drafters)}: add {' or '.join(READERS)}"
            )

    def _default_drafters(self) -> tuple[str, ...]:
        """The drafters without a model; and the head that comes with the model where its weights
        are not in blocks: a pass over those is so short that on a CPU the head's passes, and
        planning them, take what they bring."""
        has_texts = (
            datastore_folder(self.datastore, self.model) is not None
            or self.datastore_memory is not None
        )
        has_head = self.quantization == "none" and has_shipped_head(self.model)
        return (
            "prompt-lookup",
            "recycling",
            "prediction",
            *(["datastore"] * has_texts),
            *([SHIPPED] * has_head),
        )

    def _check_forced(self, acceptance: float) -> None:
        if not 0 <= acceptance <= 1:
            raise ValueError(
                f"forced_acceptance is {acceptance}: it is a chance, give a number from 0 to 1"
            )
        if self.datastore_memory is not None:
            raise ValueError(
                "forced_acceptance makes invalid text, and datastore_memory would keep it: leave "
                "one of them out"
            )

    @property
    def active_drafters(self) -> tuple[str, ...]:
        """The drafters that run: none where the policy never drafts."""
        return () if self.policy == "off" else self.drafters

    @property
    def max_requests(self) -> int:
        """Those that run and those that wait."""
        return self.max_batch + self.max_queue

    @property
    def max_requests_of_client(self) -> int:
        """The same of one client."""
        waiting = self.max_queue_per_client or max(1, self.max_queue // 2)
        return min(self.max_requests, self.max_batch + waiting)


def parse_drafters(text: str) -> tuple[str, ...]:
    """ "prompt-lookup,MODEL" -> ("prompt-lookup", "MODEL"); "none" or "" -> (). Raises ValueError on an empty name."""  # noqa: E501
    if text in ("", "none"):
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) != len(names):
        raise ValueError(f"drafter must be names separated by commas, each once, got {text!r}")
    return names


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
