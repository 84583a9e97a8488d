"""What is measured: cells, and their records in a file."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

OFF, DYNAMIC_SD, ADAPTIVE = "off", "dynamic-sd", "adaptive-verification"
BESIDE = "+adaptive"  # of a policy of SmartSpec's that decides beside adaptive verification


@dataclass(frozen=True)
class Cell:
    """One policy under one load on one set-up.

    setup, drafter: names of setups. load: closed:N (N requests at a time), poisson:RATE (requests
    per second), or trace:FILE (as `simulate --trace`; trace:FILE@2@300 comes twice as fast and has
    300 requests). policy: off (no speculation is configured), fixed:K, dynamic-sd,
    adaptive-verification, or a policy of SmartSpec's, with "+adaptive" beside adaptive
    verification. longest: of drafts. acceptance, found_share: see StatedAcceptance; or texts:FILE.
    prompt_tokens, output_tokens: means; a request has half to one and a half times as many, unless
    texts or a trace say.
    """

    setup: str
    drafter: str
    load: str
    policy: str
    is_async: bool = True
    longest: int = 5
    acceptance: str = "eagle3"
    found_share: float = 1.0
    prompt_tokens: int = 256
    output_tokens: int = 200
    seed: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether clients wait for answers. Otherwise requests come at given moments, and what
        counts is latency."""
        return self.load.startswith("closed:")

    @property
    def is_ours(self) -> bool:
        return not (self.policy in (OFF, DYNAMIC_SD, ADAPTIVE) or self.policy.startswith("fixed:"))

    @property
    def is_adaptive(self) -> bool:
        """Whether vLLM chooses which drafts are verified."""
        return self.policy == ADAPTIVE or self.policy.endswith(BESIDE)

    @property
    def is_fixed(self) -> bool:
        """Whether its draft length never changes."""
        return self.policy == OFF or self.policy.startswith("fixed:")

    @property
    def fixed_length(self) -> int:
        return 0 if self.policy == OFF else int(self.policy.removeprefix("fixed:"))

    @property
    def scene(self) -> tuple:
        """All but the policy: cells of one scene are compared."""
        return tuple(value for name, value in asdict(self).items() if name != "policy")

    @property
    def name(self) -> str:
        scheduling = "async" if self.is_async else "sync"
        return f"{self.setup} {self.drafter} {self.load} {scheduling} {self.policy}"


@dataclass(frozen=True)
class Record:
    """A measured cell. figures: see Measurement."""

    cell: Cell
    figures: dict


class Records:
    """Records in a file of JSON lines. A cell that is there is not measured again."""

    def __init__(self, path: Path):
        self._path = path
        self.found: dict[Cell, dict] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                data = json.loads(line)
                self.found[Cell(**data["cell"])] = data["figures"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}, line {number} is no record of this benchmark ({error!r})"
                ) from error

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        return [cell for cell in cells if cell not in self.found]

    def add(self, cell: Cell, figures: dict) -> None:
        self.found[cell] = figures
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": asdict(cell), "figures": figures}) + "\n")
