"""Running totals of what an engine did, for the lines a person reads."""

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.core.batch import StepOutput


@dataclass
class StepTotals:
    """Sums over steps. num_drafts: decoding requests that carried at least one draft token."""

    num_generated_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    num_decode_rows: int = 0
    num_drafts: int = 0

    def add(self, output: "StepOutput") -> None:
        """Count a step."""
        self.num_generated_tokens += sum(len(o.new_token_ids) for o in output.outputs)
        self.num_verified_tokens += output.num_verified_tokens
        self.num_accepted_tokens += output.num_accepted_tokens
        self.num_decode_rows += len(output.verified_lengths)
        self.num_drafts += sum(length > 0 for length in output.verified_lengths)

    def since(self, past: "StepTotals") -> "StepTotals":
        """The difference to past totals."""
        return StepTotals(
            *(now - then for now, then in zip(astuple(self), astuple(past), strict=True))
        )

    @property
    def acceptance_rate(self) -> float:
        """Accepted / verified draft tokens."""
        return self.num_accepted_tokens / max(self.num_verified_tokens, 1)

    @property
    def acceptance_length(self) -> float:
        """1 + accepted draft tokens / drafts: tokens a request gets from a step with a draft, on
        average."""
        return 1 + self.num_accepted_tokens / max(self.num_drafts, 1)

    @property
    def mean_length(self) -> float:
        """Draft tokens verified per decoding request and step, those without a draft included."""
        return self.num_verified_tokens / max(self.num_decode_rows, 1)
