"""What vLLM 0.32's CPU build lacks for ranks in lockstep: tensors of uneven length gathered and
scattered between ranks. A plugin of vLLM, so that its workers load it; for tests of the scheduler
alone."""

from pathlib import Path

import torch
import torch.distributed as dist


def write_plugin(folder: Path) -> None:
    """A package that names register to vLLM, for a folder that is on the path beside this one."""
    info = folder / "gathering-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gathering\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ngathering = gathering:register\n"
    )


def register() -> None:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


def all_gatherv(self, input_, dim: int = 0, sizes: list[int] | None = None):
    """The rows of all ranks. Gloo wants equal shapes, so tensors are padded."""
    if isinstance(input_, list):
        return [all_gatherv(self, tensor, dim, sizes) for tensor in input_]
    sizes = sizes or [len(input_)] * self.world_size
    padded = torch.zeros((max(sizes), *input_.shape[1:]), dtype=input_.dtype)
    padded[: len(input_)] = input_
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded, group=self.device_group)
    return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])


def reduce_scatterv(
    self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
) -> torch.Tensor:
    """This rank's rows of the sum over ranks."""
    total = input_.clone()
    dist.all_reduce(total, group=self.device_group)
    sizes = sizes or [len(input_) // self.world_size] * self.world_size
    rank = dist.get_rank(self.device_group)
    return total[sum(sizes[:rank]) :][: sizes[rank]]
