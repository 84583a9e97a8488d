"""Trained heads to disk: EAGLE-3 and P-EAGLE in the `speculators` format, and files of any kind."""

import json
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from lab.heads.p_eagle.head import PEagleHead
from smartspec.engine.drafting.head.checkpoint.eagle3 import VARIANTS
from smartspec.engine.drafting.head.checkpoint.files import WEIGHTS
from smartspec.engine.drafting.head.eagle3 import Eagle3Head, HeadConfig


def write_head(
    folder: Path, head: Eagle3Head, target_name: str, architecture: str, num_draft_tokens: int = 5
) -> None:
    """Write a head in bfloat16, config.json last: a folder with one is whole. target_name: what it
    was trained for.

    Raises OSError naming the file (disk full, no permission)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.contiguous() if name == "d2t" else tensor.to(torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
    }
    t2d = torch.zeros(head.config.layer.vocab_size, dtype=torch.bool)
    t2d[head.target_ids] = True
    config = _to_json(head.config, target_name, architecture, num_draft_tokens)
    if isinstance(head, PEagleHead):
        config = _to_json(head.config, target_name, architecture, head.num_depths)
        config |= {"architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle"}
        config |= {"mask_token_id": head.mask_token_id}
        config["speculators_config"]["algorithm"] = "peagle"
    write_files(folder, {**tensors, "t2d": t2d}, config)


def write_files(folder: Path, tensors: dict[str, torch.Tensor], config: dict) -> None:
    """Weights and config.json, each whole or not at all, config.json last. Raises OSError naming
    the folder."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as name:
            save_file(tensors, Path(name) / WEIGHTS, metadata={"format": "pt"})
            (Path(name) / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            for file in (WEIGHTS, "config.json"):
                (Path(name) / file).replace(folder / file)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"cannot write a head to {folder} ({error}): make room, then give the command again"
        ) from error


def _to_json(
    config: HeadConfig, target_name: str, architecture: str, num_draft_tokens: int
) -> dict:
    proposal = {"proposal_type": "greedy", "speculative_tokens": num_draft_tokens}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target_name, "architectures": [architecture]},
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.taps),
        **{name: getattr(config, name) for name in VARIANTS},
        "transformer_layer_config": config.layer.to_diff_dict(),
    }
