import numpy as np
import pytest

from smartspec.workload.arrivals import poisson_arrivals, read_trace, step_arrivals

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential():
    gaps = np.diff(poisson_arrivals(4.0, 20_000, np.random.default_rng(0)))
    # standard error of the mean gap: 0.25 / sqrt(20000) = 0.0018; four of them
    assert abs(gaps.mean() - 0.25) < 0.0072
    assert abs(gaps.std() / gaps.mean() - 1.0) < 0.04
    assert (gaps > 0).all()


def test_poisson_arrivals_follow_from_the_seed_alone():
    first, again, other = (
        poisson_arrivals(2.0, 50, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_a_rate_that_changes_has_its_requests_in_each_step():
    times, steps = step_arrivals([(2.0, 50.0), (10.0, 30.0)], np.random.default_rng(0))
    assert np.bincount(steps).tolist() == [100, 300]
    assert (np.diff(times) >= 0).all() and times[99] < 50 <= times[100] and times[-1] < 80
    gaps = np.diff(times[100:])
    assert abs(gaps.std() / gaps.mean() - 1.0) < 0.2


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e-308])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(ValueError, match="request rate must be a positive number"):
        poisson_arrivals(rate, 3, np.random.default_rng(0))


def test_trace_is_read_scaled_and_limited(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,374,44\n4.5,396,109\n4.5,879,55\n")
    trace = read_trace(path, time_scale=10.0, limit=2)
    assert trace.arrival_seconds.tolist() == [0.0, 0.45]
    assert trace.num_prompt_tokens.tolist() == [374, 396]
    assert trace.num_output_tokens.tolist() == [44, 109]
    assert len(read_trace(path)) == 3


@pytest.mark.parametrize(
    "row",
    [
        "1,99999999999999999999,1", "1,1,9999999999999999", "1e308,1,1",
        "x,1,1", "1,1", "1,2.5,1", "1,0,1", "1,1,-3", "nan,1,1", "inf,1,1", "-1,1,1", "0.5,1,1",
    ],
)  # fmt: skip
def test_a_bad_trace_row_is_named_by_file_and_line(tmp_path, row):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0.75,10,10\n" + row + "\n")
    with pytest.raises(ValueError, match=r"trace\.csv, line 3: "):
        read_trace(path)


def test_a_trace_without_columns_rows_or_file_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,output_tokens\n0,1\n")
    with pytest.raises(ValueError, match="line 1: no column prompt_tokens"):
        read_trace(path)
    path.write_text(HEADER)
    with pytest.raises(ValueError, match="holds no requests"):
        read_trace(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a CSV file in UTF-8"):
        read_trace(path)
    with pytest.raises(ValueError, match=r"absent\.csv: No such file"):
        read_trace(tmp_path / "absent.csv")
    for time_scale in (0.0, 1e-308):
        with pytest.raises(
            ValueError, match=f"time_scale must be a positive number, got {time_scale}"
        ):
            read_trace(path, time_scale=time_scale)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    path = tmp_path / "trace.csv"
    for line_end in ("\n", "\r\n"):
        path.write_text(HEADER + "1.5,2,3\n2,3,4\n", encoding="utf-8-sig", newline=line_end)
        trace = read_trace(path)
        assert trace.arrival_seconds.tolist() == [
            1.5,
            2.0,
        ] and trace.num_output_tokens.tolist() == [3, 4]
