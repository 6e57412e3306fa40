"""helpers.plots, explorers and exercises: they draw what they were given."""

import math
import sys

import matplotlib
import pytest
import torch

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

from helpers import (  # noqa: E402
    check,
    comparing,
    explore,
    explorers,
    formats,
    optimizing,
    plots,
    records,
    roofline,
)


@pytest.fixture(autouse=True)
def close_figures():
    before = dict(plt.rcParams)
    yield
    assert dict(plt.rcParams) == before  # drawing changes no global setting
    plt.close("all")


def words(ax):
    return [text.get_text() for text in ax.texts]


def result(name, seconds, error=None, failure=""):
    return comparing.Result(name, seconds, 1.0, error, None, 0, failure)


@pytest.fixture
def results():
    exact = comparing.Error(0.0, 0.0, exact=True)
    return comparing.Comparison(
        [
            result("FP32", (2.0,) * 8, exact),
            result("BF16", (1.0,) * 8, comparing.Error(3e-3, 0.1)),
            result("same", (2.1, 1.9) * 4, exact),
            result("nan", (1.0,) * 8, comparing.Error(math.nan, math.nan, 3)),
            result("broken", (), None, "RuntimeError: no kernel"),
        ],
        {"device": "a GPU", "torch": "2.6", "date": "2026-01-01"},
    )


def two_results():
    names = ("a name of some length", "another one")
    error = comparing.Error(1e-3, 1.0)
    return comparing.Comparison([result(n, (1.0,) * 8, error) for n in names], {})


def test_bit_layout_shows_every_bit_and_the_value():
    ax = plots.bit_layout("1.234567890", ("TF32", "FP16"))
    assert words(ax).count("0") + words(ax).count("1") == 19 + 16
    assert " 1.234375" in words(ax)


def test_speed_and_error_writes_what_it_must_not_hide(results):
    left, right = plots.speed_and_error(results, guess={"BF16": 3.0})
    told = " ".join(words(left) + words(right))
    assert "2×" in told and "no measurable difference" in told
    assert "3 NaN" in told and "failed" in told and "RuntimeError" in told
    guess = [line for line in left.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xdata()[0] for line in guess] == [3.0]
    assert left.get_xlim()[0] == 0
    bars = [bar for bar in left.patches if bar.get_fill()]
    assert [bar.get_width() for bar in bars] == [1.0, 2.0, pytest.approx(1.0, 0.1), 2.0]
    assert bars[0].get_facecolor() != bars[1].get_facecolor()
    assert left.collections, "no error bars"
    dots = [line.get_xdata()[0] for line in right.lines]
    assert dots == [3e-3]


def test_speed_and_error_outlines_the_reference(results):
    record = records.Record("00/x", results.conditions, results)
    left, _ = plots.speed_and_error(results, reference=record)
    outlines = [bar for bar in left.patches if not bar.get_fill()]
    assert [bar.get_width() for bar in outlines[:2]] == [1.0, 2.0]
    assert len(outlines) == 4
    assert "a GPU, torch 2.6, 2026-01-01" in left.figure._supxlabel.get_text()
    plots.speed_and_error(results, reference=records.Record("00/x", {}))


def test_a_baseline_that_failed_is_said():
    broken, good = (
        result("a", (), failure="OutOfMemoryError: x"),
        result("b", (1.0, 1.0)),
    )
    left, _ = plots.speed_and_error(comparing.Comparison([broken, good], {}))
    assert words(left) == ["  failed", "  nothing to compare with"]


def test_roofline_places_the_workloads():
    peaks = roofline.Peaks(1e-6, 1e9, {"FP32": 1e12})
    points = {
        "tiny": (roofline.Work(100, 0, 100, 100, 1), 2e-6),
        "chain": (roofline.Work(0, 1000, 80_000, 8000, 1), 8e-5),
        "matmul": (roofline.Work(10**9, 0, 10**6, 10**6, 1), 1e-3),
    }
    ax = plots.roofline(peaks, points)
    placed = {line.get_label(): line.get_data() for line in ax.lines}
    for name, (work, seconds) in points.items():
        assert placed[name][0][0] == work.intensity
        assert placed[name][1][0] == work.all_flops / seconds
    x, y = ax.lines[0].get_data()  # the roof
    assert max(y) == 1e12 and y[0] == x[0] * 1e9


def test_the_charts_of_formats_draw_their_numbers():
    line = plots.spacing(["FP16"]).lines[0]
    magnitude, step = (list(axis) for axis in line.get_data())
    assert step[magnitude.index(1.0)] == 2**-10
    tiny, normal = plots.ranges(["FP16"]).patches[1::-1]
    assert (tiny.get_x(), normal.get_x()) == (-24, -14)
    assert normal.get_x() + normal.get_width() == pytest.approx(math.log2(65504))
    line = plots.rounding_error(["FP16"]).lines[0]
    worst = dict(zip(*line.get_data(), strict=True))
    assert 2**-11 * 0.9 < worst[1.0] <= 2**-11 and math.isnan(worst[2.0**20])


@pytest.mark.parametrize(
    "draw",
    [
        plots.spacing,
        plots.ranges,
        plots.rounding_error,
        lambda: plots.speed_and_error(two_results())[0],
        lambda: plots.ranges(list(formats.ALL)),
        lambda: plots.bit_layout(-0.0, list(formats.ALL)[:8]),
        lambda: plots.clocks({"a": 1e-6, "b": 1e-3}, "b", "title"),
        lambda: plots.ratios({"a": [0.9, 1.2], "b": [1.0]}, "title"),
        lambda: plots.lines(
            [1, 2, 4], {"a": [1, 2, 3]}, "t", "x", "y", truth=[1, 2, 3]
        ),
    ],
)
def test_every_chart_fits_its_page_and_is_opaque(draw):
    ax = draw()
    figure = ax.figure
    figure.canvas.draw()
    assert figure.get_size_inches()[0] <= 7
    assert figure.get_facecolor() == (1, 1, 1, 1)
    renderer = figure.canvas.get_renderer()
    page = figure.bbox
    frame = [ax.xaxis.label, *ax.get_yticklabels()] if ax.axison else []
    for text in [*ax.texts, ax.title, *frame]:
        box = text.get_window_extent(renderer)
        if text.get_text() and text.get_visible():
            assert box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1, text.get_text()


def test_charts_draw_into_given_axes():
    _, ax = plt.subplots()
    assert plots.spacing(ax=ax) is ax


def test_colors_are_fixed_per_format():
    looks = [plots.look(name) for name in formats.ALL]
    assert len(set(looks)) == len(formats.ALL)


# ---------------------------------------------------------------------------- explorers


@pytest.fixture
def explorer():
    pytest.importorskip("ipywidgets")
    return explorers.FloatExplorer("1.234567890", "FP16")


def bits(explorer):
    return "".join(button.description for button in explorer.bits.children)


def test_the_explorer_begins_with_its_number(explorer):
    assert bits(explorer) == "0011110011110000"
    assert "1.234375" in explorer.state.value
    assert "1.2333984" in explorer.state.value  # a neighbor
    for name in explorers.SHOWN:
        assert name in explorer.table.value


def test_clicking_a_bit_changes_the_number(explorer):
    explorer.bits.children[0].click()
    assert explorer.number.value == -1.234375
    assert explorer.entry.value == "-1.234375"
    assert bits(explorer) == "1011110011110000"
    assert "sign 1" in explorer.state.value
    explorer.bits.children[0].click()
    assert explorer.number.value == 1.234375


def test_every_bit_of_every_format_can_be_flipped_twice(explorer):
    for name in explorer.choice.options:
        explorer.choice.value = name
        for place in range(formats.get(name).bits):
            before = explorer.number
            explorer.bits.children[place].click()
            assert explorer.number.code != before.code
            explorer.bits.children[place].click()
            assert explorer.number.code == before.code


def test_typing_and_choosing(explorer):
    explorer.entry.value = "70000"
    assert explorer.number.value == math.inf
    explorer.choice.value = "BF16"
    assert explorer.number.value == 70144  # of what was asked, not of FP16's Inf
    assert len(explorer.bits.children) == 16


@pytest.mark.parametrize("typed", ["abc", "", "1,5", "<b>"])
def test_bad_text_is_answered_and_nothing_is_lost(explorer, typed):
    before = explorer.number
    explorer.entry.value = typed
    assert "is not a decimal number" in explorer.message.value
    assert "<b>&#x27;" in explorer.message.value or typed == ""
    # The text stays, to be corrected; so does the number, with all its facts.
    assert explorer.number == before and explorer.entry.value == typed
    assert "1.234375" in explorer.state.value
    explorer.entry.value = "2"
    assert explorer.message.value == explorers.HINT


def test_the_static_twin_shows_the_same_facts(explorer):
    page = explorers.static("1.234567890", "FP16")
    assert explorer.state.value in page._repr_html_()
    assert explorer.table.value in page._repr_html_()
    for fact in ("1.2333984375 and 1.2353515625", "0.000976562", "+2^(15 - 15)"):
        assert fact in repr(page)


def test_without_ipywidgets_the_twin_is_shown(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert isinstance(explore("0.1", "BF16"), explorers.Page)
    assert "ipywidgets is not installed" in capsys.readouterr().out


def test_a_scale_format_has_nothing_to_explore():
    pytest.importorskip("ipywidgets")
    with pytest.raises(ValueError, match="cannot explore E8M0.*FP8 E4M3"):
        explore(1, "E8M0")


def test_the_table_has_the_error_with_its_sign():
    rows = {row[0]: row for row in explorers._rows("0.1")}
    assert rows["FP16"][3] == "-2.44e-05" and rows["BF16"][3] == "+9.77e-05"
    assert {row[0]: row for row in explorers._rows("1e6")}["FP16"][3] == "overflow"


@pytest.mark.parametrize("value", ["nan", "inf", "-0", "1e-400", "1e400", 0])
def test_the_twin_shows_any_number(value):
    assert "FP8 E5M2" in repr(explorers.static(value, "FP16"))


# ---------------------------------------------------------------------------- exercises


def test_an_exercise_says_not_yet_right_or_wrong(capsys):
    check(None, lambda a: a == 3, "Because.")
    check(3, lambda a: a == 3, "Because.")
    check("x", lambda a: a + 1, "Because.")
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("Not attempted yet")
    assert told[1] == "Right. Because."
    assert told[2].startswith("Not yet: 'x'")


def test_a_tensor_answer_does_not_break_the_check(capsys):
    check(torch.ones(2), lambda a: a == 1, "Because.")
    assert "Not yet" in capsys.readouterr().out


def record(data):
    where = {"device": "a GPU", "torch": "2.6", "date": "2026-01-01"}
    return records.Record("00/x", where, data=data)


def test_lines_carry_predictions_and_the_reference_run():
    other = record({"x": [1, 2, 4, 8], "FP16": [1.0, 2.0, 3.0, 4.0], "gone": [0] * 4})
    ax = plots.lines(
        [1, 2],
        {"FP16": [1.0, 1.5], "BF16": [1.0, 1.4]},
        *("title", "x", "y"),
        log="x",
        predicted={"FP16": [2.0, 2.0]},
        reference=other,
    )
    drawn = {line.get_label(): line for line in ax.lines}
    assert list(drawn["FP16, predicted"].get_ydata()) == [2.0, 2.0]
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [list(line.get_ydata()) for line in dotted if len(line.get_xdata())] == [
        [1.0, 2.0, 3.0, 4.0],
        [0.0, 0.0, 0.0, 0.0],  # what this machine has not run is shown as well
    ]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert other.label in legend
    assert "1" in [tick.get_text() for tick in ax.get_xticklabels()]


def test_lines_without_a_reference_name_none():
    empty = records.Record("00/x", {"note": "this run"})
    ax = plots.lines([1, 2], {"a": [1, 2]}, "t", "x", "y", reference=empty)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a"]


def test_bars_begin_at_zero_and_say_their_values():
    ax = plots.bars(
        {"FP32": 51.0, "BF16": 0.0}, "t", "x", words={"BF16": "none"}, limit=60.0
    )
    assert [bar.get_width() for bar in ax.patches] == [51.0, 0.0]
    assert [bar.get_x() for bar in ax.patches] == [0, 0]
    assert [w.strip() for w in words(ax)] == ["51", "none"]
    assert ax.get_xlim()[0] == 0 and ax.get_xlim()[1] > 60
    assert [t.get_text() for t in ax.get_yticklabels()] == ["FP32", "BF16"]


def test_bars_draw_their_spread_and_count_in_whole_numbers():
    ax = plots.bars({"a": 1.0, "b": 2.0}, "t", "x", spread={"a": (0.5, 1.5)})
    (interval,) = ax.collections[0].get_segments()
    assert [point[0] for point in interval] == [0.5, 1.5]
    ax = plots.bars({"a": 0, "b": 3}, "t", "x")
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_dots_on_a_logarithmic_axis_are_all_in_view():
    ax = plots.bars({"a": 1e-3, "b": 1e5}, "t", "x", limit=65504, log=True)
    assert not ax.patches
    low, high = ax.get_xlim()
    assert low < 1e-3 and high > 1e5 and ax.get_xscale() == "log"


def test_plane_draws_every_point_and_outlines_the_reference():
    mine = {"FP32": (1.0, 1e-6), "exact": (2.0, 0.0)}
    ax = plots.plane(
        mine, "t", "speed", record({"FP32": [5.0, 2e-6], "BF16": [9, 1e-3]})
    )
    spots = [line for line in ax.lines if len(line.get_xdata())]
    assert len(spots) == 4
    assert sorted(words(ax)) == ["", "BF16", "FP32", "exact"]
    assert all(min(line.get_ydata()) > 0 for line in spots)
    hollow = [line for line in spots if line.get_markerfacecolor() == "white"]
    assert [line.get_xdata()[0] for line in hollow] == [5.0, 9]


def test_plane_without_a_reference():
    empty = records.Record("00/x", {"note": "this run"})
    ax = plots.plane({"FP32": (1.0, 1e-6)}, "t", "speed", empty)
    assert ax.get_legend() is None


def test_a_timeline_has_a_bar_per_kernel_and_says_how_busy():
    rows = {"eager": [(0.0, 1e-6), (9e-6, 1e-6)], "graph": [(0.0, 1e-6), (1e-6, 1e-6)]}
    ax = plots.timeline(rows, "When the GPU worked")
    spans = [path.get_extents() for c in ax.collections for path in c.get_paths()]
    assert [(round(s.x0, 3), round(s.x1, 3)) for s in spans] == [
        (0, 1),
        (9, 10),
        (0, 1),
        (1, 2),
    ]
    words = " ".join(text.get_text() for text in ax.texts)
    assert "2 kernels in 10 µs" in words and "busy 20%" in words
    assert "busy 100%" in words
    with pytest.raises(ValueError, match="'graph'"):
        plots.timeline(rows | {"graph": []}, "empty")


def test_kernels_that_overlap_are_busy_once():
    spans = [(0.0, 2e-6), (1e-6, 2e-6), (9e-6, 1e-6)]
    ax = plots.timeline({"two streams": spans}, "t")
    assert "busy 40%" in ax.texts[0].get_text()


def test_guides_are_drawn_and_named_at_their_ends():
    series, guides = {"a": [1, 4]}, {"×4": [2, 8]}
    ax = plots.lines([1, 2], series, "t", "x", "y", guides=guides)
    gray = [line for line in ax.lines if line.get_linestyle() == "-."]
    assert [list(line.get_ydata()) for line in gray] == [[2, 8]]
    assert [text.get_text() for text in ax.texts] == ["×4"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a"]


# -------------------------------------------------------------- plans, ladders, memory


def found_search():
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    plans = [optimizing.Plan(channels_last=True), optimizing.Plan("FP32", folded=True)]
    return optimizing.search(model, x, plans=plans, progress=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the model is on the CPU")
def test_a_search_is_drawn_with_its_budget_and_its_best():
    found = found_search()
    ax = plots.search(found, "Plans")
    words = [text.get_text() for text in ax.texts]
    assert "budget: 0.02" in words and str(found.best) in words
    levels = [list(line.get_ydata()) for line in ax.lines if line.get_ls() == "--"]
    assert [0.02, 0.02] in levels
    rings = [line for line in ax.lines if line.get_markersize() == 16]
    assert len(rings) == 1
    filled = [line for line in ax.lines if line.get_markersize() == 8]
    assert len(filled) == len(found.trials)


def test_plans_over_the_budget_are_hollow_and_failures_not_drawn():
    def trial(plan, seconds, error, verdict=""):
        result = comparing.Result(
            str(plan), (seconds,) * 9, 0.0, comparing.Error(error, error)
        )
        ratio = comparing.Ratio(1 / seconds, 1 / seconds, 1 / seconds)
        return optimizing.Trial(plan, result, ratio, verdict)

    none = comparing.Ratio(math.nan, math.nan, math.nan)
    trials = (
        trial(optimizing.Plan(), 1.0, 0.0),
        trial(optimizing.Plan("BF16"), 0.5, 5e-2, "error over the budget of 0.02"),
        optimizing.Trial(optimizing.Plan("FP16"), None, none, "not tried: time"),
    )
    final = comparing.Comparison([trials[0].result], {})
    found = optimizing.Search(optimizing.Plan(), trials, final, 2e-2, 1.0)
    ax = plots.search(found)
    faces = [x.get_markerfacecolor() for x in ax.lines if x.get_markersize() == 8]
    assert len(faces) == 2 and faces.count("none") == 1
    assert "not tried: time" in str(found) and "FP16" in str(found)


def test_what_failed_is_said_or_left_out(recwarn):
    nothing = math.nan
    ladder = plots.ladder({"a": 1.0, "b": nothing}, {"b": nothing}, unclear=["b"])
    assert "   failed  (alone failed)" in [text.get_text() for text in ladder.texts]
    bars = plots.bars({"a": 1.0, "b": nothing}, "t", "x")
    assert [text.get_text().strip() for text in bars.texts] == ["1", "failed"]
    plane = plots.plane({"a": (1.0, 0.1), "b": (nothing, 0.1)}, "t", "x")
    assert [text.get_text() for text in plane.texts] == ["a"]
    peaks = roofline.Peaks(1e-6, 1e9, {"FP32": 1e9})
    points = {"a": (roofline.Work(9, 9, 9, 9, 1), nothing)}
    labels = plots.roofline(peaks, points).get_legend_handles_labels()[1]
    assert not [label for label in labels if "a" in label.split()]
    for ax in (ladder, bars, plane):
        ax.figure.canvas.draw()
    assert not recwarn.list


def test_a_ladder_shows_steps_alone_guesses_and_the_reference():
    steps, alone = {"start": 1.0, "a": 2.0}, {"start": 1.0, "a": 1.5}
    ghost = records.Record(
        "00/x",
        {"device": "X", "torch": "2", "date": "d"},
        None,
        {"start": 1.0, "a": 3.0, "b": 5.0},
    )
    unclear = plots.ladder(steps, alone, unclear=["a", "a alone"])
    assert "   no measurable difference  (alone no difference)" in words(unclear)
    ax = plots.ladder(steps, alone, {"a": 4.0}, ghost, "Ladder")
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [1.0, 1.0, 3.0, 2.0, 5.0]
    diamonds = [x.get_xdata()[0] for x in ax.lines if x.get_marker() == "D"]
    hollow = [x.get_xdata()[0] for x in ax.lines if x.get_marker() == "o"]
    assert diamonds == [1.5] and hollow == [4.0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["start", "a", "b"]
    assert "2×  (alone 1.5×)" in " ".join(text.get_text() for text in ax.texts)
    assert "X, torch 2, d" in ax.get_xlabel()


def test_memory_is_drawn_with_its_peak():
    curves = {"a": [(0.0, 2**20), (1.0, 3 * 2**20), (2.0, 0)], "b": [(0.0, 2**20)]}
    ax = plots.memory(curves, "Memory")
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["a: peak 3 MiB", "b: peak 1 MiB"]
    assert list(ax.lines[0].get_xdata()) == [0, 50, 100]
    assert list(ax.lines[0].get_ydata()) == [1, 3, 0]
    large = plots.memory({"a": [(0.0, 2**33)]}, "Memory")
    assert "8 GiB" in large.get_legend().get_texts()[0].get_text()


def test_many_points_under_a_roof_are_named_where_they_stand():
    peaks = roofline.Peaks(1e-6, 1e11, {"FP32": 1e12})
    work = roofline.Work(10**9, 0, 10**8, 10**8, 3)
    points = {f"w{i}": (work, 0.01) for i in range(5)}
    ax = plots.roofline(peaks, points)
    assert {f"w{i}" for i in range(5)} <= {text.get_text() for text in ax.texts}
    places = [t.xyann for t in ax.texts if t.get_text().startswith("w")]
    assert len({place[1] for place in places}) == 5, "names on one another"


# ------------------------------------------------------------------ the selection guide


def test_the_guide_is_a_widget_that_answers():
    widgets = pytest.importorskip("ipywidgets")
    panel = explorers.recommend("CNN", "fixed", "small")
    top, bottom, shown = panel.children
    boxes = {box.description: box for row in (top, bottom) for box in row.children}
    assert isinstance(shown, widgets.HTML)
    boxes["machine"].value = "T4"
    assert "FP16" in shown.value and "emulates" in shown.value
    boxes["machine"].value = "B200"
    boxes["kind"].value = "transformer"
    assert "FP4" in shown.value and "channels_last" not in shown.value
    boxes["shapes"].value = "varying"
    assert "dynamic=True" in shown.value
    with pytest.raises(ValueError, match="'RNN'"):
        explorers.recommend("RNN")


def test_the_guides_twin_has_a_row_for_each_generation(monkeypatch, capsys):
    page = explorers.recommendations("CNN", "fixed", "small")
    for words in ("Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "no GPU"):
        assert words in page.text and words in page.markup
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    twin = explorers.recommend("CNN", "fixed", "small")
    assert twin.text == page.text
    assert "not installed" in capsys.readouterr().out


def test_stacked_bars_carry_each_count_that_is_not_zero():
    counts = {"one": {"good": 2, "bad": 0}, "two": {"good": 1, "bad": 30}}
    ax = plots.stacked(counts, "title", "claims")
    assert words(ax) == ["2", "1", "30"]
    assert [bar.get_width() for bar in ax.patches] == [2, 0, 1, 30]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["one", "two"]
    ax.figure.canvas.draw()


def test_decisions_lead_out_and_down():
    steps = [("Is it on?", "no", "switch it on"), ("Is it hot?", "yes", "wait")]
    ax = plots.decisions(steps, "ask", "title")
    said = words(ax)
    assert said[:5] == ["Is it on?", "switch it on", "", "no", ""]
    assert said.count("yes") == 2 and said.count("no") == 2 and "ask" in said
    ax.figure.canvas.draw()
