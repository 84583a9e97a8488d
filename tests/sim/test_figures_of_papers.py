"""The example that shows a figure of each of six papers: the figures have the shapes that it
says."""

import figures_of_papers as figures
import pytest


def numbers(figure) -> dict[str, list[float]]:
    return {name: list(map(float, cells)) for name, *cells in figure.rows}


def test_smartspec_proposes_less_to_more_requests_and_more_where_more_is_accepted():
    lengths = numbers(figures.smartspec(60))
    low, middle, high = lengths.values()
    assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))
    assert all(row[-1] < row[0] for row in lengths.values())


def test_the_best_length_of_synergy_falls_with_the_batch():
    by_length = list(numbers(figures.synergy(60)).values())
    best = [
        max(range(4), key=lambda i, at=at: by_length[i][at]) for at in range(len(figures.BATCHES))
    ]
    assert best == sorted(best, reverse=True)
    assert best[-1] < best[0]


def test_long_contexts_pay_at_batch_sizes_at_which_short_ones_do_not():
    short, _, long = numbers(figures.magicdec(60)).values()
    assert short[-1] < 1.0 < long[-1]
    assert short[0] > 2.0


def test_thresholds_discard_less_than_fixed_lengths_for_as_few_passes():
    points = numbers(figures.specdecpp(60))
    thresholds = [point for name, point in points.items() if name.startswith("specdec")]
    for name, (passes, discarded) in points.items():
        if name.startswith("fixed"):
            assert any(p < passes and d < discarded for p, d in thresholds), name


def test_trees_go_on_where_chains_end():
    chain, tree = numbers(figures.sequoia(40)).values()
    assert chain[-1] < 1.1 * chain[1]
    assert tree[-1] > 1.3 * tree[1]


@pytest.mark.slow
def test_bandits_lose_less_than_a_fixed_length_under_load():
    fixed, bandit, nightjar = numbers(figures.nightjar()).values()
    assert fixed[-1] < 0.9 < min(bandit[-1], nightjar[-1])


def test_an_unknown_figure_is_named_with_those_there_are():
    with pytest.raises(SystemExit, match="no figure 'gone': use smartspec, synergy"):
        figures.main(["gone"])
