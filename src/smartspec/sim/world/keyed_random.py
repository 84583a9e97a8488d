"""Random numbers keyed by what they are for, not by when they are drawn.

A number depends on (seed, request, position, stream) alone. So two policies that meet the same
request at the same output position draw the same number, whatever they did before. These common
random numbers make differences between policies far less noisy than either. The generator is
SplitMix64's output function (Steele, Lea and Flood 2014, doi 10.1145/2714064.2660195), applied to a
counter per key.
"""

import numpy as np

NUM_STREAMS = 8  # independent numbers for one (request, position)
# 2^64 / golden ratio: SplitMix64's step from one counter value to the next
_GOLDEN = 0x9E3779B97F4A7C15
_STEP = np.uint64(_GOLDEN)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(counters: np.ndarray) -> np.ndarray:
    """SplitMix64's output function: uint64 of any shape to uint64, well mixed."""
    bits = (counters ^ (counters >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


def request_keys(seed: int, request_ids: np.ndarray) -> np.ndarray:
    """Key of each request (int [R]): uint64 [R]."""
    start = mix(np.array([(seed + 1) * _GOLDEN % 2**64], dtype=np.uint64))
    return mix(start + request_ids.astype(np.uint64) * _STEP)


def keyed_bits(keys: np.ndarray, stream: int, positions: np.ndarray | int) -> np.ndarray:
    """64 random bits per key and position (int, broadcast against keys): uint64."""
    counters = np.atleast_1d(positions).astype(np.uint64) * np.uint64(NUM_STREAMS) + np.uint64(
        stream + 1
    )
    return mix(keys + counters * _STEP)


def to_uniform(bits: np.ndarray) -> np.ndarray:
    """uint64 to float in [0, 1), with 53 bits."""
    return (bits >> np.uint64(11)) * 2.0**-53
