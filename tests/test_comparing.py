"""helpers.comparing: what it measures, what it says, and what it refuses to say."""

import dataclasses
import functools
import math
import time

import numpy as np
import pytest
import torch

from helpers import compare, comparing, machine


def sleeper(seconds, answer=None):
    answer = torch.ones(3) if answer is None else answer

    def call():
        time.sleep(seconds)
        return answer

    return call


def quick(variants, **options):
    return compare(variants, **({"seconds": 0.05, "rounds": 8} | options))


# ----------------------------------------------------------------------------- the time


def test_times_and_speedup_of_known_sleeps():
    results = quick({"slow": sleeper(0.02), "fast": sleeper(0.005)})
    assert results["slow"].median_s == pytest.approx(0.02, rel=0.3)
    assert results["fast"].median_s == pytest.approx(0.005, rel=0.5)
    ratio = results.speedup("fast")
    assert ratio.measurable and 2 < ratio.low <= ratio.median <= ratio.high
    assert "×" in str(ratio)


def test_the_cold_call_is_kept_apart():
    waits = iter([0.1])

    def call():
        time.sleep(next(waits, 0.001))
        return torch.ones(1)

    result = quick({"lazy": call}).baseline
    assert 0.1 <= result.cold_s < 1
    assert result.median_s < 0.05


def test_a_function_against_itself_is_no_gain():
    call = sleeper(0.002)
    results = compare({"one": call, "same": call}, seconds=0.2)
    assert str(results.speedup("same")) == "no measurable difference"


def test_variants_take_turns_and_swap_places():
    order = []

    def call(name):
        order.append(name)
        time.sleep(0.01)
        return torch.ones(1)

    quick({"a": lambda: call("a"), "b": lambda: call("b")}, rounds=3)
    assert "".join(order)[-6:] == "abbaab"


def test_slow_variants_get_fewer_rounds():
    result = compare({"slow": sleeper(0.1)}, seconds=0.1, rounds=50).baseline
    assert result.n == 8


def test_a_quick_call_is_timed_in_blocks():
    calls = []
    result = compare({"quick": lambda: calls.append(1) or torch.ones(1)}, seconds=0.2)
    assert len(calls) > 20 * result["quick"].n


def test_warm_up_waits_for_a_call_that_gets_faster():
    waits = iter([0.03 * 0.8**k for k in range(100)])
    result = quick({"ramp": lambda: time.sleep(next(waits, 1e-3)) or torch.ones(1)})
    low, high = result["ramp"].quartiles_s
    assert high < 2 * low


def test_the_interval_is_that_of_the_median():
    numbers = [float(n) for n in range(21)]
    assert comparing._median_interval(numbers) == (4.0, 16.0)  # 5th of 21, both ways
    assert comparing._median_interval(numbers[:8]) == (0.0, 7.0)
    assert comparing._median_interval(numbers[:7]) == (0.0, math.inf)
    result = comparing.Result("x", tuple(numbers))
    assert result.quartiles_s == (5.0, 15.0) and result.median_s == 10


def test_more_rounds_make_a_small_gain_visible():
    random = torch.Generator().manual_seed(0)

    def noisy(n, center):
        return tuple((center * (1 + 0.08 * torch.randn(n, generator=random))).tolist())

    seen = {}
    for n in (8, 21, 51):
        pairs = [
            comparing.Comparison(
                [
                    comparing.Result("a", noisy(n, 1.1)),
                    comparing.Result("b", noisy(n, 1.0)),
                ],
                {},
            )
            for _ in range(40)
        ]
        seen[n] = sum(pair.speedup("b").measurable for pair in pairs)
    assert seen[8] < seen[21] < seen[51]


@pytest.mark.parametrize(
    "ratios, words",
    [
        ((1.5, 1.4, 1.6), "1.5× (1.4 to 1.6)"),
        ((1.5, 0.9, 1.6), "no measurable difference"),
        ((1.01, 1.005, 1.015), "no measurable difference"),
        ((0.5, 0.4, 0.6), "0.5× (0.4 to 0.6)"),
        ((math.nan, math.nan, math.nan), "nothing to compare with"),
    ],
)
def test_the_words_for_a_speedup(ratios, words):
    assert str(comparing.Ratio(*ratios)) == words


def test_spread_is_measured_within_a_round():
    # Both drift alike: the times differ fivefold, their ratio never does.
    drift = [1.0, 2.0, 3.0, 4.0, 5.0, 4.0, 3.0, 2.0]
    slow = comparing.Result("slow", tuple(2 * d for d in drift))
    fast = comparing.Result("fast", tuple(drift))
    ratio = comparing.Comparison([slow, fast], {}).speedup("fast")
    assert (ratio.low, ratio.median, ratio.high) == (2, 2, 2)


@pytest.mark.parametrize("mode", ["inference", "no_grad", "grad"])
def test_every_call_runs_in_the_mode_asked_for(mode):
    seen = set()

    def call():
        seen.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return torch.ones(1)

    before = torch.is_grad_enabled()
    results = quick({"a": call}, mode=mode)
    assert seen == {(mode == "grad", mode == "inference")}
    assert results.conditions["mode"] == mode
    assert torch.is_grad_enabled() == before and not torch.is_inference_mode_enabled()


def test_the_thread_count_is_the_programs_own():
    seen = set()

    def call():
        seen.add(torch.get_num_threads())
        return torch.ones(1)

    before = torch.get_num_threads()
    quick({"a": call})
    assert seen == {before} and torch.get_num_threads() == before


# ---------------------------------------------------------------------------- the error


def test_error_against_a_reference():
    right = torch.tensor([3.0, 4.0])
    results = quick({"off": lambda: torch.tensor([3.0, 4.5])}, reference=right)
    error = results["off"].error
    assert error.relative == pytest.approx(0.1)
    assert error.largest == pytest.approx(0.5)
    assert not error.exact and str(error) == "1.0e-01"


def test_without_a_reference_the_first_answer_is_it():
    results = quick({"a": lambda: torch.ones(2), "b": lambda: torch.ones(2) * 2})
    assert results["a"].error.exact and str(results["a"].error) == "0 (exact)"
    assert results["b"].error.relative == pytest.approx(1)


def test_nan_and_inf_are_counted_not_averaged():
    output = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    results = quick({"bad": lambda: output}, reference=torch.ones(4))
    error = results["bad"].error
    assert (error.nans, error.infs) == (1, 2)
    assert math.isnan(error.relative) and math.isnan(error.largest)
    assert str(error) == "1 NaN, 2 Inf"
    assert "1 NaN, 2 Inf" in repr(results)


def test_a_first_answer_with_nan_is_no_reference():
    results = quick(
        {"bad": lambda: torch.tensor(math.nan), "good": lambda: torch.tensor(1.0)}
    )
    assert results["bad"].error.nans == 1
    assert results["good"].error.exact


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple
    cache: None = None


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.ones(2), torch.arange(3)),
        lambda: {"logits": torch.ones(2), "ids": torch.arange(3)},
        lambda: Output(
            torch.ones(2), (torch.zeros(1), torch.ones(1, dtype=torch.int8))
        ),
        lambda: [{"a": torch.ones(1, dtype=torch.bool)}, 1.5],
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: torch.ones(0),
        lambda: torch.ones(2, dtype=torch.bfloat16),
    ],
)
def test_all_kinds_of_outputs_compare(make):
    results = quick({"a": make, "b": make}, reference=make())
    assert results["b"].error.exact


def test_one_wrong_integer_in_a_tuple_shows():
    right = (torch.ones(2), torch.tensor([1, 2, 3]))
    results = quick(
        {"a": lambda: (torch.ones(2), torch.tensor([1, 2, 4]))}, reference=right
    )
    assert results["a"].error.largest == 1 and not results["a"].error.exact


def test_errors_of_several_tensors_add_up():
    right = (torch.tensor([3.0]), torch.tensor([4.0]))
    error = comparing.difference((torch.tensor([3.3]), torch.tensor([4.4])), right)
    assert error.relative == pytest.approx(0.1)
    bad = (torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert comparing.difference(bad, right).nans == 2


def test_the_error_is_computed_in_fp64():
    right = torch.tensor([1.0], dtype=torch.float64)
    error = comparing.difference(right + 1e-12, right)
    assert error.relative == pytest.approx(1e-12, rel=1e-3)


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_very_large_and_small_numbers_have_an_error(size):
    right = torch.tensor([size], dtype=torch.float64)
    assert comparing.difference(right * 1.1, right).relative == pytest.approx(0.1)


def test_large_integers_are_compared_exactly():
    assert not comparing.difference(torch.tensor(2**62 + 1), torch.tensor(2**62)).exact


def test_a_variant_that_changes_its_input_is_told_on():
    y = torch.ones(3)
    results = quick({"right": lambda: torch.ones(3) * 2, "wrong": lambda: y.mul_(2)})
    assert results["right"].error.steady and not results["wrong"].error.steady
    assert "changes from call to call" in repr(results)


def test_the_reference_is_a_copy():
    y = torch.ones(3)
    results = quick(
        {"adds": lambda: y.add_(1), "right": lambda: torch.ones(3)}, reference=y
    )
    assert results["right"].error.exact and not results["adds"].error.exact


def test_nothing_to_compare_is_a_failure():
    assert "nothing to compare" in quick({"empty": lambda: ()})["empty"].failure


def test_an_all_zero_reference_gives_no_zero_by_zero():
    zero = torch.zeros(3)
    assert comparing.difference(zero, zero).relative == 0
    assert comparing.difference(torch.ones(3), zero).relative == math.inf


def test_the_error_is_of_the_first_call_even_if_the_output_is_overwritten():
    buffer = torch.ones(2)

    def replay():  # as a CUDA graph does: the same memory again, other numbers in it
        buffer.add_(1)
        return buffer

    results = quick({"graph": replay, "other": lambda: torch.full((2,), 2.0)})
    assert results["other"].error.exact


# ---------------------------------------------------------------------- what goes wrong


def test_a_variant_that_raises_is_a_row_and_the_others_run():
    def broken():
        raise RuntimeError("no kernel\nhere")

    results = quick({"broken": broken, "good": sleeper(0.001)})
    assert results["broken"].failure == "RuntimeError: no kernel here"
    assert results["good"].n == 8
    assert "RuntimeError: no kernel here" in repr(results)
    assert math.isnan(results.speedup("good").median)


def test_a_variant_that_breaks_later_is_a_row_too():
    calls = iter(range(1000))

    def tiring():
        if next(calls, None) is None:
            raise RuntimeError("worn out")
        return torch.ones(3)

    results = quick({"good": sleeper(0.001), "tiring": tiring})
    assert "worn out" in results["tiring"].failure
    assert results["good"].n == 8


def test_a_wrong_shape_is_a_failure_that_names_both():
    results = quick({"a": lambda: torch.ones(2), "b": lambda: torch.ones(3)})
    assert "(3,)" in results["b"].failure and "(2,)" in results["b"].failure


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: compare({}), TypeError, ["{}", "dict"]),
        (lambda: compare([print]), TypeError, ["dict"]),
        (lambda: compare({1: print}), TypeError, ["1", "string"]),
        (lambda: compare({"a": 3}), TypeError, ["'a'", "3", "callable"]),
        (
            lambda: quick({"a": sleeper(0)}, mode="fast"),
            ValueError,
            ["'fast'", "no_grad"],
        ),
        (lambda: quick({"a": sleeper(0)}, rounds=2), ValueError, ["2", "at least 3"]),
        (lambda: quick({"a": sleeper(0)}, seconds=0), ValueError, ["0", "positive"]),
        (
            lambda: quick({"a": sleeper(0)}, seconds="1"),
            ValueError,
            ["'1'", "positive"],
        ),
        (
            lambda: quick({"a": sleeper(0)}, reference="x"),
            TypeError,
            ["str", "tensors"],
        ),
        (
            lambda: quick({"a": sleeper(0)}, reference=torch.tensor([math.nan])),
            ValueError,
            ["NaN or Inf"],
        ),
        (lambda: quick({"a": sleeper(0)})["b"], KeyError, ["'b'", "'a'"]),
    ],
)
def test_bad_arguments_are_quoted_and_answered(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


# -------------------------------------------------------------------- weights and units

big = torch.nn.Linear(10, 10)
shared = torch.nn.Sequential(big, big)
pair = [big]


def test_weights_are_found_where_the_callable_keeps_them():
    local = torch.nn.Linear(4, 4)
    x = torch.ones(1, 10)
    ten, four = 110 * 4, 20 * 4
    assert comparing.weight_bytes(big) == ten
    assert comparing.weight_bytes(big.forward) == ten
    assert comparing.weight_bytes(lambda: big(x)) == ten
    assert comparing.weight_bytes(lambda: local(x)) == four
    assert comparing.weight_bytes(functools.partial(big, x)) == ten
    assert comparing.weight_bytes(lambda: shared(x)) == ten
    assert comparing.weight_bytes(lambda: (big(x), local(x))) == ten + four
    assert comparing.weight_bytes(lambda m=local: m(x)) == four
    assert comparing.weight_bytes(lambda: [m(x) for m in pair]) == ten
    assert comparing.weight_bytes(np.sum) == 0


def test_an_attribute_is_not_taken_for_a_global_of_the_same_name():
    class Bundle:
        big = "something else"

    bundle = Bundle()
    assert comparing.weight_bytes(lambda: bundle.big) == 0


def test_half_the_bits_are_half_the_weights():
    half = torch.nn.Linear(10, 10).half()
    assert comparing.weight_bytes(half) * 2 == comparing.weight_bytes(big)


@pytest.mark.parametrize(
    "seconds, words",
    [
        (2.5, "2.5 s"),
        (0.0123, "12.3 ms"),
        (4.2e-6, "4.2 µs"),
        (5e-9, "5 ns"),
        (0.0, "0 s"),
        (1.92e-12, "1.92 ps"),
        (999.9e-6, "1 ms"),
        (1234.0, "1234 s"),
    ],
)
def test_show_seconds(seconds, words):
    assert comparing.show_seconds(seconds) == words
    assert comparing.show_seconds(math.nan) == "-"


def test_show_bytes():
    sizes = (None, 12, 2048, 1023 * 2**10, 3 * 2**20, 5 * 2**30)
    shown = [comparing.show_bytes(n) for n in sizes]
    assert shown == ["-", "12 B", "2 KiB", "1023 KiB", "3 MiB", "5 GiB"]


def test_the_table_has_a_row_a_variant_and_no_empty_column():
    table = quick({"a": sleeper(0.001), "b": sleeper(0.001)}).table()
    assert list(table.index) == ["a", "b"]
    assert {"time", "speedup", "error", "first call"} <= set(table.columns)
    assert "weights" not in table.columns


# --------------------------------------------------------------------------- the memory

on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="counts the RAM")


@on_a_cpu
def test_peak_memory_of_known_calls():
    x = torch.ones(1 << 20)  # 4 MiB
    for mib, call in (
        (4, lambda: x + x),
        (8, lambda: (x + x) + x),
        (12, lambda: [x + x, x + x, x + x]),
        (0, lambda: x.view(-1)),
    ):
        assert comparing.peak_bytes(call) == pytest.approx(mib << 20, abs=1024)
    assert comparing.peak_bytes(lambda: ((x + 1).sum(), (x + 1).sum())) < 5 << 20


@on_a_cpu
def test_peak_memory_sees_what_autograd_keeps():
    layers = [torch.nn.Linear(256, 256) for _ in range(10)]
    x = torch.randn(64, 256)
    kept = 64 * 256 * 4

    def run():
        y = x
        for layer in layers:
            y = layer(y).relu()
        return y

    with torch.no_grad():
        assert comparing.peak_bytes(run) <= 4 * kept
    assert comparing.peak_bytes(run) >= 10 * kept


def test_peak_memory_is_silent_and_leaves_the_environment_alone(capfd, monkeypatch):
    import os

    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    comparing.peak_bytes(lambda: torch.ones(10) + 1)
    assert "KINETO_LOG_LEVEL" not in os.environ
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("KINETO_LOG_LEVEL", "3")
    comparing.peak_bytes(lambda: torch.ones(10) + 1)
    assert os.environ["KINETO_LOG_LEVEL"] == "3"


@on_a_cpu
def test_inside_another_profiler_memory_is_not_measured():
    with torch.profiler.profile():
        assert comparing.peak_bytes(lambda: torch.ones(10) + 1) is None
        assert not quick({"a": lambda: torch.ones(3)})["a"].failure


# -------------------------------------------------------------------------------- a GPU


@pytest.mark.gpu
def test_a_gpu_call_is_waited_for_and_its_memory_seen():
    x = torch.randn(4096, 4096, device="cuda")
    results = compare({"matmul": lambda: x @ x}, seconds=0.2)
    flops_per_s = 2 * 4096**3 / results.baseline.median_s
    assert flops_per_s < 5e15  # without waiting it would be far beyond any GPU
    assert results.baseline.peak_bytes >= x.nbytes


@pytest.mark.gpu
def test_out_of_memory_is_a_row():
    import gc

    def greedy():
        return torch.empty(2**50, dtype=torch.uint8, device="cuda")

    results = quick({"greedy": greedy, "good": lambda: torch.ones(3, device="cuda")})
    gc.collect()
    assert (
        "OutOfMemory" in results["greedy"].failure
        or "memory" in results["greedy"].failure
    )
    assert results["good"].n == 8


def test_the_weights_of_a_callable_are_those_of_its_modules():
    model = torch.nn.BatchNorm1d(3)
    found = comparing.weights(lambda x: model(x))
    assert len(found) == 5  # scale, shift, mean, variance, count
    assert any(tensor is model.running_var for tensor in found)
    assert comparing.weights(torch.relu) == []


def test_speedup_over_another_variant():
    results = [
        comparing.Result(name, tuple(seconds * (1 + 0.001 * i) for i in range(9)))
        for name, seconds in {"a": 4.0, "b": 2.0, "c": 1.0}.items()
    ]
    run = comparing.Comparison(results, {})
    assert run.speedup("c").median == pytest.approx(4)
    assert run.speedup("c", over="b").median == pytest.approx(2)
    assert run.speedup("b", over="c").median == pytest.approx(0.5)
    with pytest.raises(KeyError, match="'d'"):
        run.speedup("c", over="d")


def test_memory_over_time_goes_up_and_down_again():
    device = machine.detect().device
    if device == "mps":
        pytest.skip("an Apple GPU's allocator is not seen")

    def call():
        first = torch.empty(1000, device=device)  # 4,000 bytes
        second = torch.empty(500, device=device)  # and 2,000
        del first
        third = torch.empty(100, device=device)
        del second, third

    steps = comparing.memory_over_time(call)
    held = [size for _, size in steps]
    if device == "cpu":
        assert held == [4000, 6000, 2000, 2400, 400, 0]
    assert held[-1] == 0 and max(held) >= 6000 and len(held) == 6
    times = [time for time, _ in steps]
    assert times[0] == 0 and times == sorted(times) and times[-1] < 1
    assert comparing.memory_over_time(lambda: None) == []
