"""Every value of the acceptance estimate that was chosen, not derived: the assumptions before there
are observations, and the rates at which observations are forgotten.

Strengths are the information of a prior; an observation has at most 0.25.
"""

# The acceptance of an untested drafter. It is above one half: a try costs little, and never to try
# costs the whole gain.
PRIOR = 0.6
SHARED_STRENGTH = 1.0  # of all positions of a drafter
# Of an entry of the table in view of its neighbours, and of a bucket of the calibration. It is
# larger: noise at a position that few drafts reach must not keep all drafts shorter than that.
ENTRY_STRENGTH = 2.5
REQUEST_STRENGTH = 1.5  # of a class, and of a request in its class
# weight of a neighbouring position's observations, per position of distance
NEIGHBOUR_DECAY = 0.6
# Steps after which the observations of one request count 1/e beside new ones: its text may turn
# from prose to code.
REQUEST_MEMORY = 80.0
WORKLOAD_MEMORY = 500.0  # the same for everything that requests share
# standard deviations from an entry of the table that mean a change
CHANGE_DEVIATIONS = 3.0
# the chance that a node's second child is right where the first is wrong
SECOND_CHILD = 0.3
RANK_FALL = 0.55  # the factor of this chance from each rank to the next
RANK_STRENGTH = 20.0  # the weight of this prior, in observations
RANK_MEMORY = 2000.0  # observations of a rank that count
