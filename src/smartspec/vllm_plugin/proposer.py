"""The drafter of vLLM's workers where the scheduler makes drafts: it makes none."""


class NoDrafts:
    """A drafter without drafts, of vLLM's method custom_class:
    `--speculative-config '{"model": "smartspec.vllm_plugin.proposer.NoDrafts", ...}'`."""

    def __init__(self, vllm_config):
        """Take vLLM's configuration, which is not needed."""

    def propose(self, sampled_token_ids, *arguments, **options) -> list[list[int]]:
        """Return a draft for no request."""
        return []

    def load_model(self, *arguments, **options) -> None:
        """Do nothing: there is no model."""
