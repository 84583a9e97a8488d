"""Options of speculation for one request. They change how fast tokens come, never which."""

from dataclasses import dataclass

MAX_CLASS_NAME = 64
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # so that sums and ratios of weights stay ordinary numbers
MAX_TPOT_SECONDS = 3600.0


@dataclass(frozen=True)
class SpeculationOptions:
    """Raises ValueError naming the option, the value and the allowed range.

    workload_class: requests of one class are expected to accept drafts alike ("code", "chat").
    max_draft_tokens: none of its drafts is longer (0: no drafts, None: the engine's limit). weight:
    worth of its tokens against those of others. tpot_target_seconds: wanted time per output token,
    None for as fast as all together allow. ttft_target_seconds: wanted time to the first token; it
    is measured, nothing is decided by it. predicted_token_ids: a guess of the answer, drafted from
    where there is a drafter for it.
    """

    workload_class: str | None = None
    max_draft_tokens: int | None = None
    weight: float = 1.0
    tpot_target_seconds: float | None = None
    ttft_target_seconds: float | None = None
    predicted_token_ids: tuple[int, ...] = ()

    def __post_init__(self):
        if self.workload_class is not None and not 1 <= len(self.workload_class) <= MAX_CLASS_NAME:
            raise ValueError(
                f"workload_class must have 1 to {MAX_CLASS_NAME} characters, got "
                f"{self.workload_class!r}"
            )
        if self.max_draft_tokens is not None and self.max_draft_tokens < 0:
            raise ValueError(f"max_draft_tokens must be at least 0, got {self.max_draft_tokens}")
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise ValueError(
                f"weight must be in [{MIN_WEIGHT:g}, {MAX_WEIGHT:g}], got {self.weight}"
            )
        for name in ("tpot_target_seconds", "ttft_target_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MAX_TPOT_SECONDS:
                raise ValueError(f"{name} must be in (0, {MAX_TPOT_SECONDS:g}], got {value}")


NO_OPTIONS = SpeculationOptions()
