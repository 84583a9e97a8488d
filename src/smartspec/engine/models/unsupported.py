"""The error for a checkpoint that can be read and is none that we serve."""


class UnsupportedModelError(ValueError):
    """The checkpoint is readable, but its architecture, or something that it says of itself, is not
    what we serve."""
