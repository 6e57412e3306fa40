"""Widgets to explore with; the only module that uses ipywidgets.

Each has a static twin that shows the same facts as a table: for GitHub, for machines
without widgets, and for the tests. Widgets keep to the API of ipywidgets 7.7.
"""

import html
import math

from helpers import formats, machine
from helpers._arguments import check, checked
from helpers.plots import FIELD_TINTS

SHOWN = ("FP32", "TF32", "BF16", "FP16", "FP8 E4M3", "FP8 E5M2")
# The fields are pale, and a dark theme would write on them in white.
DARK_DIGITS = "<style>.float-bit {color: #222 !important}</style>"
CELL = "text-align:left;padding:1px 10px 1px 0"  # of a table
HINT = "Click a bit, or move to it with Tab and press Space. Or type a decimal number."


@checked
class Page:
    """Hold a piece of HTML and its plain text, for notebooks and for terminals."""

    def __init__(self, text: str, markup: str):
        self.text, self.markup = text, markup

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.markup


def explore(value="1.234567890", format: str = "FP16"):
    """Return the bit explorer as a widget, or its static twin without ipywidgets.

    Args:
        value: the number to begin with, as ``formats.encode`` takes it.
        format: the format whose bits are shown first.
    """
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        print("ipywidgets is not installed: the explorer is shown without its buttons.")
        return static(value, format)
    return FloatExplorer(value, format).panel


def static(value="1.234567890", format: str = "FP16") -> Page:
    """Return what the explorer shows of a number, as a table."""
    number = formats.round_number(value, format)
    return Page(_text(number, value), _state(number) + _table(value))


class FloatExplorer:
    """Let a reader flip the bits of a number and see what it becomes.

    The state is one code in one format, and the number that the reader asked for, which
    need not be in the format. Every change goes through ``show``.

    Attributes:
        panel: the widget to display.
        number: the ``formats.Number`` shown now.
    """

    def __init__(self, value="1.234567890", format: str = "FP16"):
        import ipywidgets as widgets

        self._widgets = widgets
        self._busy = False
        self.number = formats.round_number(value, format)
        if hasattr(value, "item"):
            value = value.item()
        self.asked = value
        names = [name for name in formats.ALL if name != "E8M0"]
        if self.number.format.name not in names:
            raise ValueError(f"cannot explore {format}: give one of {', '.join(names)}")
        self.entry = widgets.Text(
            value=str(value), description="number", continuous_update=False
        )
        self.choice = widgets.Dropdown(
            options=names, value=self.number.format.name, description="format"
        )
        self.message = widgets.HTML()
        style = widgets.HTML(DARK_DIGITS, layout=widgets.Layout(display="none"))
        self.bits = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap"))
        self.state = widgets.HTML()
        self.table = widgets.HTML()
        self.entry.observe(self._on_entry, names="value")
        self.choice.observe(self._on_choice, names="value")
        top = widgets.HBox([self.entry, self.choice])
        parts = [top, self.message, self.bits, self.state, self.table, style]
        self.panel = widgets.VBox(parts)
        self.show(self.number, value)

    @checked
    def show(self, number: formats.Number, asked) -> None:
        """Show a number; ``asked`` is what all formats are compared on."""
        self.number, self.asked = number, asked
        self._busy = True  # writing to a widget must not count as the reader's doing
        self.entry.value = str(asked)
        self.choice.value = number.format.name
        self._busy = False
        self.message.value = HINT
        if len(self.bits.children) != number.format.bits:
            self.bits.children = [self._bit(i) for i in range(number.format.bits)]
        place = 0
        for field, bits in zip(FIELD_TINTS, number.fields, strict=True):
            for bit in bits:
                button = self.bits.children[place]
                button.description = bit
                button.style.button_color = FIELD_TINTS[field]
                weight = number.format.bits - 1 - place
                button.tooltip = f"{field} bit {weight} is {bit}: press to flip"
                place += 1
        self.state.value = _state(number)
        self.table.value = _table(asked)

    def flip(self, place: int) -> None:
        """Flip one bit, 0 the leftmost; its value becomes the number asked for."""
        f = self.number.format
        check("place", place, int)
        if not 0 <= place < f.bits:
            raise ValueError(f"place={place}: give 0 to {f.bits - 1}")
        number = formats.decode(self.number.code ^ (1 << (f.bits - 1 - place)), f)
        self.show(number, number.exact or repr(number.value))

    def _bit(self, place: int):
        layout = self._widgets.Layout(width="30px", margin="1px", padding="0")
        button = self._widgets.Button(description="0", layout=layout)
        button.add_class("float-bit")
        button.on_click(lambda _: self.flip(place))
        return button

    def _on_entry(self, change) -> None:
        if not self._busy:
            self._try(change["new"], self.number.format)

    def _on_choice(self, change) -> None:
        if not self._busy:
            self._try(self.asked, formats.get(change["new"]))

    def _try(self, asked, f: formats.Format) -> None:
        """Show a number in a format; if it cannot be, say why and keep the rest."""
        try:
            number = formats.round_number(asked, f)
        except (TypeError, ValueError) as error:
            self._busy = True
            self.choice.value = self.number.format.name
            self._busy = False
            self.message.value = f"<b>{html.escape(str(error))}</b>"
        else:
            self.show(number, asked)


# ----------------------------------------------------------------- what both twins show


def _state(number: formats.Number) -> str:
    """Describe the selected number: its fields as text, formula, neighbors, spacing."""
    f = number.format
    fields = " ".join(
        f'<span style="background:{tint};color:#222;padding:0 3px">{bits}</span>'
        for tint, bits in zip(FIELD_TINTS.values(), number.fields, strict=True)
        if bits
    )
    lines = [f"<b>{f.name}</b> {fields}", *(html.escape(t) for t in _facts(number))]
    return f'<div style="font-family:monospace">{"<br>".join(lines)}</div>'


def _facts(number: formats.Number) -> list[str]:
    sign, exponent, significand = (bits or "none" for bits in number.fields)
    value = number.exact or f"{number.value!r}"
    below, above = formats.neighbors(number.code, number.format)
    facts = [
        f"sign {sign}, exponent {exponent} = {number.exponent_field}, "
        f"significand {significand} = {number.significand_field}",
        f"{number.kind}: {number.formula} = {value}",
        f"neighbors: {_number(below)} and {_number(above)}",
    ]
    if math.isfinite(number.value):
        facts.append(f"spacing here: {formats.ulp(number.value, number.format):.6g}")
    return facts


def _rows(asked) -> list[tuple[str, str, str, str, str]]:
    """List for each format: name, bits, value stored, error, relative error."""
    exact = formats.exact_value(asked)
    rows = []
    for name in SHOWN:
        number = formats.round_number(asked, name)
        error = relative = "-"
        if math.isfinite(_float(exact)) and not math.isfinite(number.value):
            error = "overflow"
        elif math.isfinite(_float(exact)):
            gap = type(exact)(number.value) - exact
            error = f"{_float(gap):+.3g}" if gap else "0"
            relative = f"{_float(abs(gap / exact)):.2g}" if exact else "0"
        bits = " ".join(part for part in number.fields if part)
        rows.append((name, bits, repr(number.value), error, relative))
    return rows


HEADINGS = ("format", "bits", "value stored", "error", "relative error")


def _table(asked) -> str:
    cell = f'style="{CELL};font-family:monospace"'
    head = "".join(f"<th {cell}>{name}</th>" for name in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td {cell}>{entry}</td>" for entry in row) + "</tr>"
        for row in _rows(asked)
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(number: formats.Number, asked) -> str:
    lines = [f"{number.format.name} {' '.join(number.fields).strip()}", *_facts(number)]
    rows = [HEADINGS, *_rows(asked)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    for row in rows:
        cells = (entry.ljust(width) for entry, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _float(value) -> float:
    """Return the nearest float, an infinite one where a Fraction is too large."""
    return formats.round_number(value, "FP64").value


def _number(value: float | None) -> str:
    return "none" if value is None else repr(value)


# --------------------------------------------------------- what to try on which machine


@checked
def recommend(kind: str = "transformer", shapes: str = "fixed", batch: str = "large"):
    """Return the selection guide as a widget, or its static twin without ipywidgets.

    Args:
        kind, shapes, batch: what to begin with, as ``machine.recommend`` takes them.
    """
    try:
        import ipywidgets as widgets
    except ImportError:
        print("ipywidgets is not installed: the guide is shown as a table.")
        return recommendations(kind, shapes, batch)
    names = ["this machine", *machine.DATA_SHEETS, "no GPU"]
    choices = {"machine": names, "kind": machine.KINDS}
    choices |= {"shapes": machine.SHAPES, "batch": machine.BATCHES}
    begin = {"machine": names[0], "kind": kind, "shapes": shapes, "batch": batch}
    machine.recommend(kind, shapes, batch)  # raises where one of them is unknown
    boxes = {
        name: widgets.Dropdown(options=options, value=begin[name], description=name)
        for name, options in choices.items()
    }
    shown = widgets.HTML()

    def update(change=None):
        asked = {name: box.value for name, box in boxes.items()}
        shown.value = _advice(_described(asked.pop("machine")), **asked)

    for box in boxes.values():
        box.observe(update, names="value")
    update()
    rows = list(boxes.values())
    return widgets.VBox([widgets.HBox(rows[:2]), widgets.HBox(rows[2:]), shown])


@checked
def recommendations(
    kind: str = "transformer", shapes: str = "fixed", batch: str = "large"
) -> Page:
    """Return what to try first on each generation of GPU, and without one, as a table.

    It asks no GPU, and reads the same on every machine.
    """
    import pandas

    rows = {}
    for name in ("V100", "T4", "A100", "L4", "H100", "B200", "RTX 5090", "no GPU"):
        here = _described(name)
        advice = machine.recommend(kind, shapes, batch, here).advice
        label = f"{here.generation} ({name})" if here.generation else name
        rows[label] = {a.topic: a.do for a in advice}
    frame = pandas.DataFrame.from_dict(rows, orient="index").fillna("-")
    with pandas.option_context("display.max_colwidth", None):
        return Page(frame.to_string(), frame.to_html())


def _described(name: str) -> machine.Machine | None:
    if name == "this machine":
        return None
    if name == "no GPU":
        return machine.Machine("cpu", "a CPU without 16-bit units", described=True)
    return machine.gpu(name)


def _advice(here: machine.Machine | None, **asked) -> str:
    cell = f'style="{CELL}"'
    link = 'target="_blank" style="text-decoration:underline"'  # the notebook stays
    rows = "".join(
        f"<tr><td {cell}><b>{html.escape(a.topic)}</b></td>"
        f"<td {cell}>{html.escape(a.do)}</td>"
        f"<td {cell}>{html.escape(a.why)} "
        f'(<a href="{a.source}" {link}>source</a>)</td></tr>'
        for a in machine.recommend(**asked, machine=here).advice
    )
    return f"<table>{rows}</table>"
