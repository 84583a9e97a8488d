"""Every value of the acceptance estimate that was chosen and not derived."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AcceptanceSettings:
    """What is believed before anything is seen, and how fast it is forgotten.

    prior: acceptance of an untested drafter, a little more often right than not: a try costs little, never trying costs
    the whole gain. Strengths are information of a prior (an observation has 0.25 at most): of all positions of a
    drafter; of an entry of the table in view of its neighbours and of a bucket of the calibration (more: noise at a
    position that few drafts reach must not keep all drafts short of it); of a class, and of a request in its class.
    neighbour_decay: weight of a neighbouring position's observations, per position of distance. request_memory and
    workload_memory: steps after which 1/e of what was known counts beside new observations, of one request (its text
    may turn from prose to code) and of everything that requests share. confidence_trust: of the prior of a calibration,
    the part that is the confidence; the rest is what the drafter usually reaches. history_slope: how much of what is
    known of a request shifts the acceptance that a confidence stands for. second_child, rank_fall: chance that a node's
    second child is right where the first is wrong, and how it falls with every further one; rank_strength: of that, in
    observations; rank_memory: the same for what is learned of them.
    """

    prior: float = 0.6
    shared_strength: float = 1.0
    entry_strength: float = 2.5
    request_strength: float = 1.5
    neighbour_decay: float = 0.6
    request_memory: float = 80.0
    workload_memory: float = 500.0
    confidence_trust: float = 0.5
    history_slope: float = 0.5
    second_child: float = 0.3
    rank_fall: float = 0.55
    rank_strength: float = 20.0
    rank_memory: float = 2000.0
