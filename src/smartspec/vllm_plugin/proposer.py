"""The drafter of vLLM's workers where drafts are made in the scheduler: it makes none."""


class NoDrafts:
    """For `--speculative-config '{"model": "smartspec.vllm_plugin.proposer.NoDrafts", ...}'`, vLLM's method
    custom_class."""

    def __init__(self, vllm_config):
        """vllm_config: vLLM's configuration, which is not needed."""

    def propose(self, sampled_token_ids, *arguments, **options) -> list[list[int]]:
        """A draft for no request."""
        return []

    def load_model(self, *arguments, **options) -> None:
        """There is none."""
