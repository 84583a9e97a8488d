"""The learned cost model on disk, one file per set-up: model, device, parallelism, drafter and version of vLLM."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from smartspec.control import DrafterSpec, LatencyModel
from smartspec.observation.files import write_json


@dataclass(frozen=True)
class CostFile:
    """key: what the times depend on, JSON-able. may_write: false in all ranks but one."""

    folder: Path
    key: dict
    may_write: bool = True

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]
        return self.folder / "vllm" / f"{digest}.json"

    def load(self, drafters: tuple[DrafterSpec, ...]) -> LatencyModel | None:
        """The model of this set-up, None where there is none yet. ValueError or OSError says why a file is unusable."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("key") != self.key:
            raise ValueError("it is of another set-up")
        latency = LatencyModel.from_dict(data.get("cost_model"))
        latency.use_drafters(drafters)
        return latency

    def store(self, latency: LatencyModel) -> None:
        """Write it whole or not at all; OSError where that is not possible, ValueError where times are not finite.
        Nothing happens unless may_write."""
        if not self.may_write:
            return
        write_json(self.path, {"key": self.key, "cost_model": latency.to_dict()})


def setup_key(vllm_config, vllm_version: str, device: str, tiers: tuple[int, ...] | None) -> dict:
    """Everything that step times depend on, by name. tiers: draft lengths with graphs."""
    model, parallel, speculation = vllm_config.model_config, vllm_config.parallel_config, vllm_config.speculative_config
    draft_model = getattr(speculation, "model", None)
    return {
        "model": str(model.model),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "method": str(speculation.method),
        "draft_model": None if draft_model is None else str(draft_model),
        "parallel": [parallel.tensor_parallel_size, parallel.data_parallel_size],
        "eager": bool(model.enforce_eager),
        "tiers": None if tiers is None else list(tiers),
        "device": device,
        "vllm": vllm_version,
    }
