"""The example of a host that embeds the controller does what it says."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed_controller.py"


def test_the_example_gains_from_the_controller():
    main = runpy.run_path(str(EXAMPLE))["main"]
    off, goodput = main(policy="off"), main()
    assert goodput > 1.3 * off
    assert goodput > main(policy="fixed:3")
    assert main() == goodput, "the world is seeded"
