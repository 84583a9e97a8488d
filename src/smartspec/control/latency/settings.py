"""Every value of the time model that was chosen, not derived: the errors of a profile, and the
speed at which a machine changes."""

# The relative standard deviation of all profiled coefficients together (another clock rate, a busy
# machine).
COMMON_STD = 0.7
SINGLE_STD = 0.15  # the same of each coefficient by itself
# For a profile that measured no cost of context: to read so many tokens plausibly takes as long as
# to read the weights, and attention to them as long as the rest of a token's pass.
ATTENTION_TOKENS = 16_384.0
# The part of the way back to the prior in every step. The speed as a whole may then wander by
# 0.35 % a step, a coefficient by itself by 0.08 %.
FORGETTING = 1 / 40_000
NOISE = 0.03  # the relative standard deviation of a measurement
# The factor of noise for a size that was never run (code generation, allocation, cold caches).
FIRST_USE_NOISE = 3.0
# Standard deviations of an innovation. Beyond these its influence is bounded (Huber).
MAX_DEVIATIONS = 2.5
# So many innovations beyond that in a row and of one sign are no outliers: the machine has changed.
CHANGE_RUN = 3
HOST_RATE = 0.1  # the rate of learning the host's time, per step
