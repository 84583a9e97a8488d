"""Step times fitted to what was observed, for loads and lengths that were not.

    seconds = constant + per token fed + more per token beyond the bend + per request + per token in the KV
              + for prefill in the step + for drafts in it + per draft pass, and per request in it

No coefficient is negative. Up to the bend a pass is bound by reading weights, beyond it by
arithmetic. Where the bend is, traffic of few loads does not tell: so it is fitted for each of
BENDS, and all count by how well they fit. What their predictions differ by is part of the interval.
Two things that observed loads may leave open are weakly assumed: how many tokens' arithmetic takes
as long as the reading of all 16-bit weights (by data sheets, see RIDGES), and that a draft pass
takes a twentieth of the shortest step.
"""  # noqa: E501

from dataclasses import dataclass

import numpy as np

from smartspec.control import CostCurve, LatencyModel
from smartspec.control.latency.nnls import solve_nnls
from smartspec.observation.records import BENDS, COLUMN, SUMS, Observation

# SUMS of a step and the fed tokens beyond a bend. By steps: the constant.
FEATURES = ("steps", "fed_tokens", "beyond", "requests", "context_tokens", "mixed", "drafting",
            "passes", "pass_rows")  # fmt: skip
# By feature, the most of a step's time that it may take where nothing speaks for more, as a
# standard deviation.
USUAL_SHARE = (np.inf, 0.3, np.inf, 0.1, 0.1, 0.1, 0.1, np.inf, 0.1)
NUM_ASSUMED = int(np.isfinite(USUAL_SHARE).sum()) + 2
# Dense 16-bit operations per byte of memory traffic, from vendors' data sheets, by what the
# device's name holds. Large matrix products reach about 65 % of the first, streaming reads 90 % of
# the second.
RIDGES = {"B200": 281.0, "H200": 206.0, "H100": 295.0, "A100": 153.0, "L40S": 419.0, "L4": 403.0,
          "A10": 208.0}  # fmt: skip
USUAL_RIDGE, REACHED = 295.0, 0.65 / 0.90
CPU_RIDGE_TOKENS = 16.0
RIDGE_DOUBT = 0.5
PASS_SHARE, PASS_DOUBT = 0.05, 0.05
MODEL_NOISE = 0.015  # of a mean time: what this form of a step's time leaves out
STALL_STEPS = 4.0  # neighbouring steps take alike: so many say as much as one
LEAST_STEPS = 8  # of a cell


@dataclass(frozen=True)
class StepTimes:
    """Step times fitted to an observation."""

    coefficients: np.ndarray  # float [bends, FEATURES]
    weights: np.ndarray  # float [bends], that add up to 1

    def seconds(self, sizes: np.ndarray) -> float:
        """Mean time of steps. sizes: float [bends, FEATURES], means of the steps' features."""
        return float(self.weights @ (sizes * self.coefficients).sum(axis=1))

    def latency(self, has_passes: bool) -> LatencyModel:
        """The likeliest bend as a cost model of the controller."""
        c = dict(zip(FEATURES, self.coefficients[self.weights.argmax()].tolist(), strict=True))
        bend = float(BENDS[self.weights.argmax()])
        slopes = (c["fed_tokens"], c["fed_tokens"] + c["beyond"])
        constant = c["steps"] + c["drafting"]  # that of steps with drafts
        context = c["context_tokens"]
        target = CostCurve(
            (0.0, bend), slopes, constant, per_context_token=context, per_row=c["requests"]
        )
        draft = CostCurve.linear(max(c["passes"], 1e-6), c["pass_rows"])
        return LatencyModel(target, (draft,) if has_passes else ())


@dataclass(frozen=True)
class CellTimes:
    """The measured times of cells. means: float [N, SUMS and BENDS], of a step's sums. noise:
    relative standard deviations of mean times."""

    means: np.ndarray
    noise: np.ndarray
    ridge: float

    @staticmethod
    def of(observation: Observation) -> "CellTimes":
        """ValueError where there are too few steps."""
        cells = np.array([cell for cell in observation.cells.values() if cell[0] >= LEAST_STEPS])
        if not len(cells):
            raise ValueError(
                f"{observation.num_steps} steps were observed: too few to say anything, send more "
                "requests"
            )
        means = cells / cells[:, :1]
        ratio = means[:, COLUMN["squares"]] / means[:, COLUMN["seconds"]] ** 2
        variance = np.maximum(ratio - 1.0, 0.0) * STALL_STEPS / cells[:, 0]
        return CellTimes(means, np.sqrt(MODEL_NOISE**2 + variance), ridge_tokens(observation.setup))

    def fit(self) -> StepTimes:
        fits = [self._fit(number, 1.0, np.zeros(NUM_ASSUMED)) for number in range(len(BENDS))]
        cost = np.array([cost for _, cost in fits])
        weights = np.exp(-(cost - cost.min()) / 2)
        return StepTimes(np.array([found for found, _ in fits]), weights / weights.sum())

    def draw(self, likeliest: StepTimes, rng: np.random.Generator) -> StepTimes:
        """What the times may be: a bend drawn by its weight, and what is measured and assumed by
        its doubt."""
        number = int(rng.choice(len(BENDS), p=likeliest.weights))
        target = 1.0 + self.noise * rng.standard_normal(len(self.noise))
        found, _ = self._fit(number, target, rng.standard_normal(NUM_ASSUMED))
        weights = np.eye(len(BENDS))[number]
        return StepTimes(weights[:, None] * found, weights)

    def _fit(
        self, bend: int, target: np.ndarray | float, doubt: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Coefficients, and how badly they fit. bend: its number. target, doubt: 1 and 0, or what
        measured and assumed may be."""
        seconds = self.means[:, COLUMN["seconds"]]
        columns = COLUMN | {"beyond": len(SUMS) + bend}
        design = self.means[:, [columns[name] for name in FEATURES]] / seconds[:, None]
        most = design.max(axis=0)
        scale = np.where(most > 0, most, 1.0)
        usual = np.diag(1.0 / np.array(USUAL_SHARE))[np.isfinite(USUAL_SHARE)]
        is_slope, is_pass = np.isin(FEATURES, ("fed_tokens", "beyond")), np.isin(FEATURES, "passes")
        slope = is_slope * (self.ridge / seconds.min() / RIDGE_DOUBT)
        draft_pass = is_pass * (1.0 / seconds.min() / PASS_DOUBT)
        assumed = np.concatenate([usual, [slope / scale, draft_pass / scale]])
        wanted = np.append(np.zeros(len(usual)), [1.0 / RIDGE_DOUBT, PASS_SHARE / PASS_DOUBT])
        wanted += doubt
        matrix = np.concatenate([design / scale / self.noise[:, None], assumed])
        values = np.append(target / self.noise, wanted)
        found = solve_nnls(matrix, values)
        return found / scale, float(((matrix @ found - values) ** 2).sum())


def ridge_tokens(setup: dict) -> float:
    """Tokens whose arithmetic takes about as long as the reading of all weights."""
    if setup.get("platform") == "cpu":
        return CPU_RIDGE_TOKENS
    device = str(setup.get("device", "")).upper()
    return REACHED * next((ratio for name, ratio in RIDGES.items() if name in device), USUAL_RIDGE)
