"""The forecast of draft lengths from an engine's own traffic: sums of its steps, step times and
acceptance fitted to them, and what each length would make at each load. numpy alone. See
docs/observe.md."""
