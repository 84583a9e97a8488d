"""Named workload classes: what an operator says of requests that name one, as far as they do not
say it themselves."""

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import ValidationError

from smartspec.server.openai.generation_body import SpeculationBody

CLASS_FIELDS = ("max_draft_tokens", "weight", "tpot_target_ms", "ttft_target_ms")


class WorkloadClasses:
    """settings: by the name of a class, values of CLASS_FIELDS.

    Raises ValueError naming the class and the field at fault.
    """

    def __init__(self, settings: Mapping[str, Mapping[str, object]] = MappingProxyType({})):
        if not isinstance(settings, Mapping):
            raise ValueError(f"classes must be tables, [classes.NAME], got {settings!r}")
        self._classes = {name: _read(name, values) for name, values in settings.items()}

    def fill(self, requested: SpeculationBody) -> SpeculationBody:
        """The requested options, with the values of their class where they have none of their
        own."""
        named = self._classes.get(requested.workload_class or "")
        if named is None:
            return requested
        return named.model_copy(
            update={field: getattr(requested, field) for field in requested.model_fields_set}
        )


def _read(name: str, values: Mapping[str, object]) -> SpeculationBody:
    if not isinstance(values, Mapping) or (unknown := set(values) - set(CLASS_FIELDS)):
        what = f"has no {min(unknown)}" if isinstance(values, Mapping) else "must be a table"
        raise ValueError(f"class {name!r} {what}: give {', '.join(CLASS_FIELDS)}")
    try:
        return SpeculationBody(workload_class=name, **values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"class {name!r}, {first['loc'][0]}: {first['msg']}, got {first['input']!r}"
        ) from error
