"""vLLM and this project on one GPU: a bundle for a machine without a network, and what is measured
there."""
