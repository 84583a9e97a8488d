"""Which draft tokens are right where weights are random: by a rule, the same under every policy.

The draft token at a position of a request is right if a number drawn for (seed of the request,
position) is below the request's rate: one rate for even seeds, one for odd ones. A wrong token is
handed to vLLM's rejection as -1, and vLLM's own synthetic rates are 1, so that it accepts all
others. One small kernel runs beside vLLM's; the host never waits.
"""

from lib.gpu.plan import MIXED, Rates

try:
    import triton
    import triton.language as tl

    @triton.jit
    def mark_wrong(
        out_ptr, draft_ptr, pos_ptr, rows_ptr, seed_ptr, rates_ptr, count, BLOCK: tl.constexpr
    ):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        exists = at < count
        row = tl.load(rows_ptr + at, mask=exists, other=0).to(tl.int64)
        exists = exists & (row >= 0)
        seed = tl.load(seed_ptr + row, mask=exists, other=0)
        pos = tl.load(pos_ptr + at, mask=exists, other=0).to(tl.int64)
        rate = tl.load(rates_ptr + (seed & 1), mask=exists, other=0.0)
        drawn = tl.rand(20261127, (seed * 1000003 + pos).to(tl.int32))
        draft = tl.load(draft_ptr + at, mask=exists, other=0)
        tl.store(out_ptr + at, tl.where(drawn < rate, draft, -1), mask=exists)
except ImportError:  # where no GPU is used
    mark_wrong = None


class StatedAcceptance:
    """To be installed before an engine is made."""

    def __init__(self, rates: Rates = MIXED):
        self._wanted, self._rates = rates, None

    def set(self, rates: Rates) -> None:
        """From the next step on."""
        import torch

        self._wanted = rates
        if self._rates is not None:
            # as it was made in that mode, it can be changed in it alone
            with torch.inference_mode():
                self._rates.copy_(torch.tensor(rates, dtype=torch.float32))

    def install(self) -> None:
        """Takes its place in vLLM's V2 runner."""
        import torch
        from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler

        stock = rejection_sampler.rejection_sample

        def rejection_sample(
            logits,
            draft_logits,
            drafts,
            cu,
            pos,
            idx,
            expanded,
            local,
            temperature,
            seed,
            *rest,
            **more,
        ):
            marked, count = torch.empty_like(drafts), drafts.shape[0]
            rates = self._on(drafts.device)
            mark_wrong[((count + 255) // 256,)](
                marked, drafts, pos, expanded, seed, rates, count, BLOCK=256
            )
            return stock(
                logits,
                draft_logits,
                marked,
                cu,
                pos,
                idx,
                expanded,
                local,
                temperature,
                seed,
                *rest,
                **more,
            )

        rejection_sampler.rejection_sample = rejection_sample
        # Weights that are not loaded count as absent: vLLM would take the target's output matrix
        # for the head's.
        Eagle3LlamaForCausalLM.has_own_lm_head = True

    def state_confidences(self) -> None:
        """What the drafter reports beside its drafts is the true rate, too. The estimator that vLLM
        has for that goes on working, so that its time counts."""
        from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator

        stock = EagleSpeculator.propose

        def propose(speculator, input_batch, *arguments, **options):
            drafts = stock(speculator, input_batch, *arguments, **options)
            if not options.get("dummy_run"):
                seeds = speculator.seeds[input_batch.idx_mapping]
                told = self._on(seeds.device)[seeds & 1]
                speculator.draft_token_confidence_probs[: input_batch.num_reqs] = told[:, None]
            return drafts

        EagleSpeculator.propose = propose

    def _on(self, device):
        if self._rates is None:
            import torch

            self._rates = torch.tensor(self._wanted, dtype=torch.float32, device=device)
        return self._rates
