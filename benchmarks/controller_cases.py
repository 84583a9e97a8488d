"""The cases of the controller's table: what is simulated, and against what it is compared."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from smartspec.sim.scenario import Scenario
from smartspec.sim.static_load import Phase

FIXED = tuple(f"fixed:{k}" for k in range(1, 9))
BATCHES = (1, 4, 16, 64, 128, 256)
MIXED = "0.9/8,0.4/8"
SIMPLE = ("goodput", "off")  # beside perfect-estimates
OUTPUT_TOKENS = 200


@dataclass(frozen=True)
class Cell:
    """A scenario in steady state, the policies that play it, and the steps that do not count (warm-up).

    static_steps: steps of policies that learn nothing (perfect-estimates, off, fixed:K), to which all steps are alike;
    None for as many as the others.
    """

    name: str
    scenario: Scenario
    phases: tuple[Phase, ...]
    policies: tuple[str, ...]
    skipped_steps: int = 0
    static_steps: int | None = None

    def played_by(self, policy: str, seed: int) -> tuple[Scenario, list[Phase], int]:
        """Scenario, phases and steps to skip of one run."""
        scenario = replace(self.scenario, policy=policy, seed=seed)
        if self.static_steps is None or policy == "goodput":
            return scenario, list(self.phases), self.skipped_steps
        return scenario, [replace(p, num_steps=self.static_steps) for p in self.phases], 0


def phase(num_steps: int, num_rows: int, class_ids: tuple[int, ...] = (0,), **changes) -> Phase:
    return Phase(num_steps, num_rows, class_ids, **({"output_tokens": OUTPUT_TOKENS} | changes))


def static_cells() -> Iterator[Cell]:
    """Steady state: batch 1 to 256, one acceptance for all or mixed, draft model or lookup; requests never end."""
    for drafter in ("model", "lookup"):
        for acceptance in ("0.5", "0.7", "0.9", MIXED):
            classes = tuple(range(acceptance.count(",") + 1))
            for batch in BATCHES:
                yield Cell(
                    f"{drafter}, acceptance {acceptance}, batch {batch}",
                    Scenario(batch=batch, acceptance=acceptance, drafter=drafter),
                    (phase(250, batch, classes, output_tokens=None),),
                    ("goodput", "off", *FIXED),
                    skipped_steps=100,
                    static_steps=50,
                )


def mixed_cells() -> Iterator[Cell]:
    """Mixed acceptance at large batches, requests of OUTPUT_TOKENS tokens coming and going, against one length."""
    for drafter in ("model", "lookup"):
        for batch in (64, 128, 256):
            yield Cell(
                f"{drafter}, acceptance {MIXED}, batch {batch}",
                Scenario(batch=batch, acceptance=MIXED, drafter=drafter),
                (phase(300, batch, (0, 1)),),
                ("goodput", *FIXED),
                skipped_steps=100,
                static_steps=100,
            )


def change_cells() -> Iterator[Cell]:
    """The load grows 1 -> 4 -> 8 fold, and the workload changes with every step of it."""
    for drafter in ("model", "lookup"):
        for acceptance in ("0.85,0.45,0.7", "0.4,0.8,0.2", "0.3,0.8,0.1"):
            phases = tuple(phase(300, 8 * factor, (class_id,)) for class_id, factor in enumerate((1, 4, 8)))
            scenario = Scenario(batch=8, acceptance=acceptance, drafter=drafter)
            yield Cell(f"{drafter}, acceptance {acceptance.replace(',', ' -> ')}", scenario, phases, SIMPLE)


def wrong_cells() -> Iterator[Cell]:
    """A start-up profile that is wrong, and a machine that becomes slower."""
    for drafter in ("model", "lookup"):
        for batch in (8, 64, 256):
            base = Scenario(batch=batch, acceptance="0.7", drafter=drafter)
            phases = (phase(300, batch, context_tokens=4096),)
            for profile in (0.5, 2.0, "no-context"):
                scenario = replace(base, profile=profile)
                yield Cell(f"{drafter}, profile {profile}, batch {batch}", scenario, phases, SIMPLE, skipped_steps=100)
            throttled = replace(base, throttle=((0.0, 1.0), (3.0, 1 / 0.7)))
            yield Cell(f"{drafter}, 30 % slower from 3 s, batch {batch}", throttled, (phase(600, batch),), SIMPLE)


def useless_cells() -> Iterator[Cell]:
    """A drafter that is nearly always wrong."""
    for drafter in ("model", "lookup"):
        for acceptance in ("0.0", "0.05", "0.1"):
            for batch in (1, 8, 64, 256):
                scenario = Scenario(batch=batch, acceptance=acceptance, drafter=drafter)
                phases = (phase(400, batch),)
                yield Cell(f"{drafter}, acceptance {acceptance}, batch {batch}", scenario, phases, SIMPLE)


CASES = {
    "static": static_cells,
    "mixed": mixed_cells,
    "changes": change_cells,
    "wrong": wrong_cells,
    "useless": useless_cells,
}
