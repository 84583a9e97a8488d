"""Which widths of drafts a step compares."""

from smartspec.control.goodput.widths import COMPARED_EVERY, Widths


def test_all_are_compared_now_and_then_and_the_best_one_holds_in_between():
    widths = Widths((1, 4))
    compared = []
    for _ in range(2 * COMPARED_EVERY):
        compared.append(widths.of_step(6))
        widths.chose(6, 4)
    assert compared == 2 * [(1, 4), *[(4,)] * (COMPARED_EVERY - 1)]


def test_every_batch_size_has_a_width_of_its_own():
    widths = Widths((1, 4))
    widths.chose(1, 4)
    assert widths.of_step(64) == (1, 4)
    widths.chose(64, 1)
    assert (widths.of_step(1), widths.of_step(64)) == ((4,), (1,))
