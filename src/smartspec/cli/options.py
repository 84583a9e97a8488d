"""A command's options as the fields of a record, so that each is stated once and functions take one
argument."""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import get_type_hints


def command(
    record: type, more: Iterable[Parameter] = ()
) -> Callable[[Callable], Callable[..., None]]:
    """Makes what typer takes for a command of a function of one record.

    record: a dataclass whose fields are annotated as typer has parameters. more: parameters beside
    them, which the function gets as keyword arguments.
    """
    hints = get_type_hints(record, include_extras=True)
    own = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(record)
    ]

    def of_record(function: Callable) -> Callable[..., None]:
        signature = Signature([*own, *more])

        @wraps(function)
        def typed(**given) -> None:
            bound = signature.bind(**given)
            bound.apply_defaults()
            values = dict(bound.arguments)
            options = record(**{parameter.name: values.pop(parameter.name) for parameter in own})
            function(options, **values)

        typed.__signature__ = signature
        typed.__annotations__ = {
            parameter.name: parameter.annotation for parameter in (*own, *more)
        }
        return typed

    return of_record
