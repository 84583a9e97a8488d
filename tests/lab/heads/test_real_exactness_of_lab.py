"""The real model with drafters and policies of the lab: greedy output is that of plain decoding,
token for token."""

import numpy as np
import pytest
from default_model import stock_model
from make_heads import make_eagle
from test_real_exactness import generate, plain

from lab.heads.medusa.checkpoint import write_medusa
from lab.heads.write import write_head
from lab.train.start import initial_medusa, initial_p_eagle
from smartspec.engine.models.default_model import DEFAULT_MODEL

EAGLE, P_EAGLE, MEDUSA, TREE = "eagle", "p-eagle", "medusa", "lab.drafters.ngram_tree:NgramTree"
__all__ = ["plain"]
pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def untrained_of_other_kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of heads as training starts with them, for the model's first tokens."""
    folder, model, ids = tmp_path_factory.mktemp("heads"), stock_model(), np.arange(4096)
    write_head(
        folder / P_EAGLE,
        initial_p_eagle(model, ids, 10.0, 0, 5, seed=0),
        DEFAULT_MODEL,
        type(model).__name__,
    )
    write_medusa(folder / MEDUSA, initial_medusa(model, ids, 5))
    (folder / "model").mkdir()
    model.config.save_pretrained(folder / "model")
    make_eagle(folder / EAGLE, str(folder / "model"))
    return {name: str(folder / name) for name in (EAGLE, P_EAGLE, MEDUSA)}


@pytest.mark.parametrize("policy", ["fixed:4", "eagle2:8"])
@pytest.mark.parametrize("drafters", [(TREE,), (EAGLE,), (P_EAGLE,), (MEDUSA,)], ids="+".join)
def test_greedy_output_with_heads_of_other_kinds_is_that_of_plain_decoding(
    plain, untrained_of_other_kinds, policy, drafters
):
    outputs, steps = generate(
        policy, tuple(untrained_of_other_kinds.get(name, name) for name in drafters)
    )
    assert outputs == plain
    assert sum(step.num_verified_tokens for step in steps) > 0
