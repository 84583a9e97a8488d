"""vLLM's real engine with a GPU's clock: an executor that computes nothing, and answers when a GPU
would have."""
