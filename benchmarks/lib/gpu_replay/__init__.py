"""A host with captured graphs, played with the step times that were measured on a GPU."""
