"""`policies.py insurance`: each case runs alone, and a search takes time of those that search."""

from dataclasses import replace

import pytest
from lib.insurance import CASES, REFERENCES, cases_of, insurance_page, play_cases


@pytest.mark.parametrize("name", CASES)
def test_each_case_runs_alone_in_the_small(name):
    scenario = replace(CASES[name].scenario, batch=2, num_requests=2, output_tokens=5)
    small = {name: replace(CASES[name], scenario=scenario)}
    rows = play_cases(small, ["off", "fixed:1"], seeds=1, processes=1, is_charged=False)
    assert {row.policy: row.relative[row.policy] for row in rows} == {"off": 1.0, "fixed:1": 1.0}
    assert [row.of_best for row in rows] == sorted((row.of_best for row in rows), reverse=True)
    assert f"| {name} | `off` |" in insurance_page(rows, small, "python a.py", False)


def test_a_search_takes_time_of_those_that_search():
    search = CASES["search"]
    case = replace(search, scenario=replace(search.scenario, batch=2, num_requests=4))
    both = {"free": replace(case, search_seconds=0.0), "search": case}
    rows = play_cases(both, REFERENCES, seeds=1, processes=1, is_charged=False)
    seconds = {(row.case, row.policy): row.mean_seconds for row in rows}
    assert seconds["search", "off"] == seconds["free", "off"]
    assert seconds["search", "fixed:1"] > 1.1 * seconds["free", "fixed:1"]


def test_cases_are_chosen_by_name():
    assert list(cases_of("drafts x3, burst")) == ["drafts x3", "burst"]
    assert cases_of("") == CASES
    with pytest.raises(ValueError, match="no case is 'draft': use changes, profile x3"):
        cases_of("draft")
