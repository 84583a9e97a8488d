"""Training rows as `speculators train` reads them, for those who have an accelerator."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from lab.train.shards import read_rows
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.texts.shards import TokenRow


def export_rows(runner: ModelRunner, data: Path, out: Path, report: Callable[[str], None]) -> None:
    """Write a `datasets` folder of the rows and, beside it, hidden_states/hs_<i>.safetensors of
    each of them.

    runner: of the target, tapped at the head's layers and after the last layer. Raises ValueError
    where there are no rows, `datasets` is not installed, or out holds something already.
    """
    try:
        from datasets import Dataset
    except ModuleNotFoundError as error:
        raise ValueError(
            "--export-data needs the package datasets: pip install datasets"
        ) from error
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: export into a new folder")
    rows = list(read_rows(data))
    columns = [_columns(row) for row in rows]
    dataset = Dataset.from_dict({name: [each[name] for each in columns] for name in columns[0]})
    dataset.with_format("torch").save_to_disk(str(out))  # its reader compares tensors
    folder = out / "hidden_states"
    folder.mkdir()
    for index, row in enumerate(rows):
        runner.forward([Segment(0, 0, row.token_ids, 1)])
        hidden = (
            runner.features[0]
            .unflatten(-1, (len(runner.taps), -1))
            .to(torch.bfloat16)
            .contiguous()
            .cpu()
        )
        token_ids = torch.from_numpy(row.token_ids.astype(np.int64))
        save_file(
            {"hidden_states": hidden, "token_ids": token_ids}, folder / f"hs_{index}.safetensors"
        )
        if index % 100 == 99:
            report(f"{index + 1} of {len(rows)} rows")


def _columns(row: TokenRow) -> dict:
    is_answer = np.arange(len(row.token_ids)) >= row.answer_start
    return {
        "input_ids": row.token_ids.tolist(),
        "loss_mask": is_answer.astype(np.int64).tolist(),
        "seq_len": len(row.token_ids),
    }
