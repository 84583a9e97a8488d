"""The optimiser of matrices: torch's own rule, in a type that the processor multiplies fast."""

import pytest
import torch

from lab.train.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_in_bfloat16_it_is_torchs_muon(shape):
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(4, *shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = (
        Muon([ours], lr=0.01, weight_decay=0.1, dtype=torch.bfloat16),
        torch.optim.Muon(
            [theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
    )
    for gradient in gradients:
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    assert not torch.equal(ours, start)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_an_update_in_fp32_keeps_directions_and_evens_out_their_sizes():
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(12, 30), full_matrices=False)
    made = orthogonal(left @ torch.diag(torch.logspace(0, -1, 12)) @ right)
    inside = left.T @ made @ right.T
    assert made.dtype == torch.float32
    assert (inside - torch.diag(inside.diagonal())).abs().max() < 1e-4
    assert inside.diagonal().min() > 0.5 and inside.diagonal().max() < 1.3


def test_what_it_remembers_is_kept_and_restored():
    weight = torch.nn.Parameter(torch.eye(4))
    weight.grad = torch.eye(4)
    kept = Muon([weight], lr=0.1, weight_decay=0.0, dtype=torch.float32)
    kept.step()
    again = Muon([weight], lr=0.1, weight_decay=0.0, dtype=torch.float32)
    again.load_state_dict(kept.state_dict())
    assert torch.equal(
        again.state[weight]["momentum_buffer"], kept.state[weight]["momentum_buffer"]
    )
