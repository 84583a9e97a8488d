"""Every value of the acceptance estimate that was chosen and not derived."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AcceptanceSettings:
    """What is assumed before there are observations, and how fast observations are forgotten.

    prior: acceptance of an untested drafter. It is above one half: a try costs little, and never to try costs the whole
    gain. Strengths are the information of a prior (an observation has at most 0.25). shared_strength: of all positions
    of a drafter. entry_strength: of an entry of the table in view of its neighbours, and of a bucket of the
    calibration. It is larger: noise at a position that few drafts reach must not keep all drafts shorter than that.
    request_strength: of a class, and of a request in its class.

    neighbour_decay: weight of a neighbouring position's observations, per position of distance. request_memory: steps
    after which 1/e of what was known of one request counts beside new observations (its text may turn from prose to
    code); workload_memory: the same for everything that requests share, in steps of up to workload_requests: more
    requests at a time say as much in fewer steps, so a change is seen sooner, but no sooner than request_memory.

    confidence_trust: the part of a calibration's prior that is the confidence; the rest is the usual acceptance of the
    drafter. history_slope: how much of what is known of a request shifts the acceptance that belongs to a confidence.

    second_child: chance that a node's second child is right where the first is wrong; rank_fall: factor from each rank
    to the next. rank_strength: weight of this prior, in observations; rank_memory: observations of a rank that count.
    """

    prior: float = 0.6
    shared_strength: float = 1.0
    entry_strength: float = 2.5
    request_strength: float = 1.5
    neighbour_decay: float = 0.6
    request_memory: float = 80.0
    workload_memory: float = 500.0
    workload_requests: float = 8.0
    confidence_trust: float = 0.5
    history_slope: float = 0.5
    second_child: float = 0.3
    rank_fall: float = 0.55
    rank_strength: float = 20.0
    rank_memory: float = 2000.0

    def workload_steps(self, num_rows: float) -> float:
        """workload_memory in steps of so many rows."""
        shorter = max(num_rows / self.workload_requests, 1.0)
        return max(self.workload_memory / shorter, self.request_memory)
