"""One rank of two, for test_ranks.py: `two_ranks.py RANK FILE TP_SIZE` prints the steps of each
launch. FILE: where they meet. TP_SIZE: 2, or 1 to let each decide for itself."""

import json
import os
import sys

import numpy as np
from lib.emulated_gpu.sglang_loop import GRAPH_SIZES, VirtualClock, Worker
from sglang.srt.distributed import init_distributed_environment, init_model_parallel_group
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

rank, file, tp_size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
uses_queue = os.environ["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] == "true"
init_distributed_environment(
    world_size=2,
    rank=rank,
    local_rank=rank,
    distributed_init_method=f"file://{file}",
    backend="gloo",
)
group = init_model_parallel_group(
    [[0, 1]], rank, "gloo", use_pynccl=False, use_custom_allreduce=False,
    use_message_queue_broadcaster=uses_queue, group_name="tp",
)  # fmt: skip
get_parallel().override_permanently(tp_size=2, tp_group=group)
load_plugins()
worker = Worker(3)
worker.server_args.tp_size = tp_size
controller = AdaptiveController(worker, AdaptiveSpeculativeParams(3))
controller.init_states(GRAPH_SIZES)
clock = controller.params._clock = VirtualClock()
rng, chosen = np.random.default_rng(0), []
for _ in range(400):
    batch_size = int(rng.choice([1, 2, 7, 8, 20, 40, 70]))
    right = (rng.random((batch_size, 7)) < 0.7).cumprod(axis=1).sum(axis=1)
    controller.activate_step_by_batch(batch_size)
    chosen.append(worker.speculative_num_steps)
    clock.now += 0.010 if rank == 0 else 0.001 * (1 + worker.speculative_num_steps) * batch_size
    controller.on_verify_complete(
        np.minimum(right, worker.speculative_num_steps).tolist(), batch_size
    )
print(json.dumps({"policy": type(controller.params).__name__, "chosen": chosen}))
