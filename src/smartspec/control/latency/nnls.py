"""Least squares with non-negative coefficients, so that control needs numpy alone."""

import numpy as np


def solve_nnls(design: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the x >= 0, float [N], that minimises |design @ x - values|, by the active-set method
    of Lawson and Hanson (1974, chapter 23).

    design: float [M, N]. values: float [M]. Columns should be of similar size.
    """
    num_columns = design.shape[1]
    solution = np.zeros(num_columns)
    free = np.zeros(num_columns, dtype=bool)
    tolerance = 1e-10 * np.abs(design).sum() * np.abs(values).max(initial=0.0)
    for _ in range(2 * num_columns):
        gradient = design.T @ (values - design @ solution)
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= tolerance:
            break
        free[gradient.argmax()] = True
        while True:
            candidate = np.zeros(num_columns)
            candidate[free] = np.linalg.lstsq(design[:, free], values, rcond=None)[0]
            blocking = free & (candidate <= 0)
            if not blocking.any():
                break
            # Walk from the old solution towards the candidate until the first coefficient reaches
            # zero; fix it there.
            steps = solution[blocking] / np.maximum(
                solution[blocking] - candidate[blocking], 1e-300
            )
            solution = solution + steps.min() * (candidate - solution)
            free &= solution > 1e-14
            solution[~free] = 0.0
        solution = candidate
    return solution
