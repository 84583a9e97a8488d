"""Shared test settings: few threads, fixed hypothesis behaviour."""

from hypothesis import settings

settings.register_profile("smartspec", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("smartspec")
