"""The decisions about one request of a recorded log, each with its reason in words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from smartspec.control import DecisionRecord, LogHeader


@dataclass(frozen=True)
class Decision:
    """The decision about one request in one step."""

    step: int  # of the log, from 1
    num_rows: int
    length: int
    # the longest draft that a drafter without a model had found, or one with passes may make
    found: int
    longest: int  # that this request had room for
    drafter: str  # name, "" for none
    expected: float  # draft tokens of the plan that were expected to be accepted
    verified: int
    accepted: int
    # goodput, off_goodput: predicted (weighted) tokens per second of the whole step, and without
    # its drafts
    goodput: float
    off_goodput: float
    reason: str | None

    def why(self, policy: str) -> str:
        """The reason in words."""
        if self.reason is not None:
            return self.reason
        if not self.longest:
            return "no room: the answer, the context or the KV memory ends here"
        if not self.found:
            return "no drafter had a draft, or none was queried: looking costs time, too"
        if not policy.startswith("goodput"):
            return f"by the rule of {policy}"
        if not self.length:
            return f"none of {self.found} found would pay"
        if self.verified < self.length:
            return f"cut to {self.verified} once the drafter's confidence was known"
        if self.length >= min(self.found, self.longest):
            return (
                "as long as the draft that was found"
                if self.found < self.longest
                else "as long as drafts may be"
            )
        return f"{min(self.found, self.longest) - self.length} more would not pay"


def decisions_of(
    records: Iterable[DecisionRecord], header: LogHeader, request: int
) -> Iterator[Decision]:
    """The decisions about one request, in the order of steps."""
    for step, record in enumerate(records, start=1):
        ids = record.view.request_ids.tolist()
        if request in ids:
            yield _decision(step, record, header, ids.index(request))


def _decision(step: int, record: DecisionRecord, header: LogHeader, row: int) -> Decision:
    view, outcome, number = record.view, record.outcome, int(record.drafter[row])
    length, longest = (
        int(record.lengths[row]),
        min(int(view.row_caps[row]), header.max_draft_tokens),
    )
    found = (
        [drafter.lengths[row] for drafter in view.drafters]
        if number < 0
        else [view.drafters[number].lengths[row]]
    )
    return Decision(
        step=step,
        num_rows=view.num_rows,
        length=length,
        found=min(int(max(found, default=0)), header.max_draft_tokens),
        longest=longest,
        drafter=header.drafters[number].name if number >= 0 else "",
        expected=float(record.survival[row, :length].sum()),
        verified=int(outcome.verified[row]),
        accepted=int(outcome.accepted[row]),
        goodput=record.goodput,
        off_goodput=record.off_goodput,
        reason=record.reason,
    )
