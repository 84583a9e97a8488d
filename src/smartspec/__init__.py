"""SmartSpec: speculative decoding whose length is chosen, per request and step, by predicted
goodput.

LLM and SamplingParams are for programs that generate in their own process (smartspec.llm). They are
imported when they are used: the controller alone needs numpy only. transformers is then imported
without torch's compiler and distributed tensors, which takes a third of the time; a program that
needs these in transformers imports it before.
"""

__version__ = "0.1.0"
__all__ = ["LLM", "GenerationOutput", "SamplingParams"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smartspec import llm

    return getattr(llm, name)
