"""helpers.roofline against work counted by hand."""

import pytest
import torch

from helpers import roofline, switches


def test_a_matmul_by_hand():
    work = roofline.count(torch.matmul, torch.ones(30, 40), torch.ones(40, 50))
    moved = (30 * 40 + 40 * 50 + 30 * 50) * 4
    assert work == roofline.Work(2 * 30 * 40 * 50, 0, moved, moved, 1)
    assert work.intensity == 2 * 30 * 40 * 50 / moved


def test_a_chain_moves_its_numbers_at_every_step_but_needs_them_once():
    def chain(x):
        for _ in range(10):
            x = x * 2
        return x

    work = roofline.count(chain, torch.ones(1000))
    assert (work.ops, work.flops, work.elementwise) == (10, 0, 10_000)
    assert work.bytes_moved == 10 * 2 * 4000
    assert work.bytes_least == 2 * 4000


def test_in_place_operations_read_and_write():
    work = roofline.count(lambda x: x.add_(1), torch.ones(1000))
    assert (work.ops, work.bytes_moved, work.bytes_least) == (1, 8000, 8000)


def test_a_copy_reads_its_source_alone():
    work = roofline.count(lambda x, y: y.copy_(x), torch.ones(1000), torch.ones(1000))
    assert (work.bytes_moved, work.bytes_least) == (8000, 8000)


def test_memory_is_read_once_and_parts_are_told_apart():
    x = torch.ones(1000)
    assert roofline.count(lambda: x + x).bytes_moved == 8000
    halves = roofline.count(lambda: x[:500] + x[500:])
    assert (halves.bytes_moved, halves.bytes_least) == (6000, 6000)
    into = torch.empty(1000)
    assert roofline.count(lambda: torch.add(x, 1, out=into)).bytes_moved == 8000


def test_attention_has_flops_on_a_cpu_too():
    q = torch.ones(2, 4, 16, 32)
    attention = torch.nn.functional.scaled_dot_product_attention
    assert roofline.count(attention, q, q, q).flops == 2 * (2 * 4 * 16 * 16 * 32) * 2


def test_views_and_allocations_are_free():
    def call(x):
        torch.empty(1000)
        return x.view(10, 100).t()[2:].unsqueeze(0)

    work = roofline.count(call, torch.ones(1000))
    assert (work.ops, work.bytes_moved) == (0, 0)


def test_an_expanded_tensor_has_only_the_bytes_behind_it():
    x = torch.ones(1).expand(1000)
    work = roofline.count(lambda x: x + 1, x)
    assert work.bytes_moved == 4 + 4000


def test_weights_count_once_and_half_precision_halves_the_bytes():
    layer, x = torch.nn.Linear(64, 32, bias=False), torch.ones(8, 64)
    full = roofline.count(layer, x)
    half = roofline.count(layer.bfloat16(), x.bfloat16())
    assert full.bytes_least == (64 * 32 + 8 * 64 + 8 * 32) * 4
    assert half.bytes_least * 2 == full.bytes_least
    assert half.flops == full.flops == 2 * 8 * 64 * 32


def test_dict_outputs_are_counted():
    work = roofline.count(lambda x: {"y": (x + 1, None)}, torch.ones(100))
    assert work.bytes_least == 800


PEAKS = roofline.Peaks(1e-6, 1e9, {"FP32": 1e12, "BF16": 4e12})


@pytest.mark.parametrize(
    "work, binding, least_s",
    [
        (roofline.Work(0, 10, 10, 10, 7), "overhead", 7e-6),
        (roofline.Work(0, 0, 10**6, 10, 7), "memory", 1e-3),
        (roofline.Work(10**12, 0, 10**6, 10, 7), "compute", 1.0),
    ],
)
def test_the_largest_of_three_times_binds(work, binding, least_s):
    bound = roofline.bound(work, PEAKS)
    assert bound.binding == binding
    assert bound.least_s == pytest.approx(least_s)


def test_a_faster_format_has_its_own_roof():
    work = roofline.Work(10**12, 0, 10, 10, 1)
    assert roofline.bound(work, PEAKS, "BF16").compute_s == pytest.approx(0.25)
    with pytest.raises(ValueError, match="FP16 peak.*FP32, BF16"):
        roofline.bound(work, PEAKS, "FP16")
    with pytest.raises(ValueError, match="'FP12'"):
        roofline.bound(work, PEAKS, "FP12")


def test_rates_follow_from_the_times(monkeypatch):
    monkeypatch.setattr(roofline, "_fastest", lambda call, calls: 0.5)
    monkeypatch.setattr(roofline.machine, "fit", lambda wanted, share: 8000)
    peaks = roofline.measure_peaks(("fp32",))
    assert peaks.op_s == 0.5
    assert peaks.bytes_per_s == 2 * 1000 * 4 / 0.5
    assert peaks.flops_per_s == {"FP32": 2 * 1024**3 / 0.5}


def test_the_fastest_block_is_the_peak(monkeypatch):
    times = iter([3.0, 1.0, 2.0, 5.0, 4.0])
    monkeypatch.setattr(roofline, "time_block", lambda call, calls: next(times))
    assert roofline._fastest(lambda: None, 1) == 1.0


@pytest.mark.parametrize("name", ["FP12", "E2M1", "E4M3"])
def test_a_format_that_cannot_be_multiplied_is_refused(name):
    with pytest.raises(ValueError, match=name):
        roofline.measure_peaks((name,))


def test_peaks_are_measured_here():
    peaks = roofline.measure_peaks(("FP32",))
    assert 1e-8 < peaks.op_s < 1e-2
    assert 1e8 < peaks.bytes_per_s < 1e14
    assert 1e8 < peaks.flops_per_s["FP32"] < 1e16
    assert "FP32 matmul" in str(peaks)


def test_peaks_leave_the_switches_as_they_were():
    before = switches.state()
    roofline._matmul_rate("TF32", "cpu")
    assert switches.state() == before


def test_show_rate():
    shown = [roofline.show_rate(5.1e13), roofline.show_rate(2.5e10, "B/s")]
    assert shown == ["51 TFLOP/s", "25 GB/s"]


@pytest.mark.gpu
def test_a_large_matmul_reaches_the_peak_it_was_measured_by():
    peaks = roofline.measure_peaks(("FP32",))
    x = torch.randn(4096, 4096, device="cuda")
    from helpers import compare

    took = compare({"matmul": lambda: x @ x}, seconds=0.3).baseline.median_s
    bound = roofline.bound(roofline.count(torch.matmul, x, x), peaks)
    assert bound.binding == "compute"
    assert 0.5 < bound.least_s / took < 1.2
