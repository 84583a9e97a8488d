"""Cards: costs and acceptance of a model with a drafter on a device, as JSON that can be passed on.
No texts, no paths.

A new server starts from one where it has no step times of its own, and the simulator plays it.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from smartspec.control import LatencyModel
from smartspec.observation.acceptance import acceptance_by_depth
from smartspec.observation.files import read_json, write_json
from smartspec.observation.records import COLUMN, Observation
from smartspec.observation.step_times import CellTimes

KIND, FORMAT = "smartspec-card", 1
MOST_TESTS = 1000.0  # observations of acceptance that a card counts as, at most: traffic may differ
IDENTITY = ("engine", "model", "method", "draft_model", "dtype", "quantization")


@dataclass(frozen=True)
class Card:
    """engine, version, model, draft_model, method, dtype, quantization, device, parallel: what it
    is of, names without folders. longest: draft. latency: LatencyModel.to_dict(). acceptance: by
    depth, given that the tokens before were accepted; tested: how many were. requests: fewest and
    most at a time that were observed, in the mean of a level. steps: observed ones."""

    engine: str
    version: str
    model: str
    method: str
    draft_model: str | None
    dtype: str
    quantization: str
    device: str
    parallel: tuple[int, ...]
    longest: int
    latency: dict
    acceptance: tuple[float, ...]
    tested: tuple[int, ...]
    requests: tuple[float, float]
    steps: int

    @staticmethod
    def of(observation: Observation) -> "Card":
        """ValueError where too little was observed."""
        setup, depths = observation.setup, acceptance_by_depth(observation.outcomes)
        loads = [cell[COLUMN["requests"]] / cell[0] for cell in observation.cells.values()]
        latency = CellTimes.of(observation).fit().latency(bool(setup.get("has_passes")))
        named: dict[str, Any] = {name: setup.get(name) for name in (*IDENTITY, "version", "device")}
        return Card(
            **named,
            parallel=tuple(setup.get("parallel") or (1,)),
            longest=int(setup.get("longest") or len(depths)),
            latency=latency.to_dict(),
            acceptance=tuple(round(chance, 4) for chance, _ in depths),
            tested=tuple(count for _, count in depths),
            requests=(round(min(loads), 1), round(max(loads), 1)),
            steps=observation.num_steps,
        )

    @staticmethod
    def read(path: Path) -> "Card":
        """ValueError names a file that holds none, or one that is corrupt."""
        data = read_json(path)
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise ValueError(
                f"{path} is no card: `smartspec vllm observed --card {path.name}` writes one"
            )
        if data.get("format") != FORMAT:
            raise ValueError(
                f"{path} is a card of format {data.get('format')}, and this version reads {FORMAT}"
            )
        try:
            values = {each.name: data[each.name] for each in fields(Card)}
            for name in ("parallel", "acceptance", "tested", "requests"):
                values[name] = tuple(values[name])
            card = Card(**values)
            card.check()
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"card {path} is corrupt ({error!r}): write it again") from error
        return card

    def check(self) -> None:
        """ValueError on values that cannot be true."""
        LatencyModel.from_dict(self.latency)
        sound = {
            "acceptance": all(0 <= chance <= 1 for chance in self.acceptance),
            "tested": len(self.tested) == len(self.acceptance) and min(self.tested, default=0) >= 0,
            "longest": self.longest >= 1,
        }
        for name, is_sound in sound.items():
            if not is_sound:
                raise ValueError(f"{name} is {getattr(self, name)}")

    def write(self, path: Path) -> None:
        """Whole or not at all; OSError where that is not possible."""
        write_json(path, {"kind": KIND, "format": FORMAT} | asdict(self))

    def problem(self, setup: dict) -> str | None:
        """Says why it is not of this setup (see setup_of in the plugin), None if it is. Another
        device or version of the engine is no problem: times are corrected by every step."""
        for name in IDENTITY:
            mine, here = getattr(self, name), setup.get(name)
            if mine != here and (name, mine) != ("draft_model", None):
                return f"it is of {name.replace('_', ' ')} {mine}, and this is {here}"
        return None
