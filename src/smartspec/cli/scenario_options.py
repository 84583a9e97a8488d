"""The settings of a simulated engine (sim.settings) as options of a command, and back."""

from inspect import Parameter
from typing import Annotated, Any

from typer import Option

PANEL = "Scenario"


def scenario_options(*names: str) -> list[Parameter]:
    """Options for these settings; for all of them if no name is given."""
    from smartspec.sim.settings import stated_settings

    stated = stated_settings()
    return [_option(*one) for one in stated if not names or one[0].name in names]


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Values of settings from those of the options that scenario_options made."""
    from smartspec.sim.settings import stated_settings

    settings = {}
    for field, _, setting in stated_settings():
        name = setting.option or field.name
        if name not in given:
            continue
        if setting.read is None:
            settings[field.name] = given[name]
        elif given[name] is not None:
            settings[field.name] = setting.read(given[name])
    return settings


def _option(field, kind, setting) -> Parameter:
    """Shows bounds of 0 and 1. Other bounds are far off, and the scenario refuses values beyond
    them."""
    told = {
        "min": setting.least if setting.least in (0, 1) else None,
        "max": setting.largest if setting.largest == 1 else None,
        "show_default": setting.shown or True,
    }
    option = Option(help=setting.help, rich_help_panel=PANEL, **told)
    kind, default = (kind, field.default) if setting.read is None else (str | None, None)
    return Parameter(
        setting.option or field.name,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )
