"""The two guides' claims, and what a run says of them.

``claims.toml`` holds all 114: what a guide says, how it stood when checked, what is
true, and the notebook that tests it or the page that settles it. A notebook's cells
judge with ``verdict``; ``table`` lays this run beside the reference machine's.
"""

import dataclasses
import functools
import pathlib
import tomllib

from helpers import records

VERDICTS = {
    True: "holds here",
    False: "does not hold here",
    None: "cannot be tested here",
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """Hold one claim; the fields are described at the top of ``claims.toml``."""

    id: str
    guide: int
    section: str
    says: str
    checked: str
    truth: str
    chapter: str = ""
    citation: str = ""


_judged: dict[str, dict] = {}  # what this process has judged, by claim id


@functools.cache
def load() -> dict[str, Claim]:
    """Read all claims, by id: "G1-1" to "G1-71", "G2-1" to "G2-43"."""
    path = pathlib.Path(__file__).parent / "claims.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Claim(name, **fields) for name, fields in content.items()}


def get(id: str) -> Claim:
    """Return one claim.

    Raises:
        ValueError: there is no such claim; the message says which there are.
    """
    if id not in load():
        raise ValueError(f"unknown claim {id!r}: give G1-1 to G1-71 or G2-1 to G2-43")
    return load()[id]


def verdict(id: str, holds: bool | None, evidence: str) -> None:
    """Judge a claim by this run: print one line, and keep it for ``table``.

    Args:
        id: the claim, such as "G1-48".
        holds: True, False, or None if this machine cannot tell.
        evidence: what was measured, in a few words; with None, what is missing.

    Raises:
        ValueError: unknown claim, or no evidence.
        TypeError: ``holds`` is none of the three.
    """
    get(id)
    if hasattr(holds, "item"):
        holds = holds.item()  # a NumPy or torch truth value
    if not isinstance(holds, bool | None):
        raise TypeError(f"holds={holds!r}: give True, False or None")
    if not isinstance(evidence, str) or not evidence.strip():
        raise ValueError(f"evidence={evidence!r}: say in a few words what was measured")
    _judged[id] = {"holds": holds, "evidence": evidence}
    print(f"{id} {VERDICTS[holds]}: {evidence}")


class Table:
    """Show claims and verdicts; text wraps instead of being cut off."""

    def __init__(self, frame):
        self.frame = frame

    def __repr__(self) -> str:
        return self.frame.to_string(max_colwidth=60)

    def _repr_html_(self) -> str:
        import pandas

        with pandas.option_context("display.max_colwidth", None):
            html = self.frame.to_html(justify="left", border=0)
        html = html.replace("<td>", '<td style="text-align: left">')
        head, body = html.split("<tbody>")
        head = head.replace("<th>", '<th style="text-align: left">')
        ids = '<th style="text-align: left; white-space: nowrap">'
        return f"{head}<tbody>{body.replace('<th>', ids)}"


def table(chapter: str) -> Table:
    """Lay a chapter's verdicts from this run beside the reference machine's.

    Args:
        chapter: the notebook's file name without its ending, "01_float_formats".

    Raises:
        ValueError: no claim belongs to that chapter.
    """
    import pandas

    mine = {name: claim for name, claim in load().items() if claim.chapter == chapter}
    if not mine:
        chapters = sorted({c.chapter for c in load().values() if c.chapter})
        raise ValueError(
            f"no claims for {chapter!r}: give one of {', '.join(chapters)}"
        )
    here = {name: _judged[name] for name in mine if name in _judged}
    there = records.reference(f"{chapter[:2]}/verdicts", here)
    rows = {}
    for name, claim in mine.items():
        row = {"the guide says": claim.says, "here": _words(here.get(name))}
        if there.data:
            row[there.label] = _words(there.data.get(name))
        rows[name] = row | {"what is true": claim.truth}
    return Table(pandas.DataFrame.from_dict(rows, orient="index"))


def _words(judged: dict | None) -> str:
    if judged is None:
        return "not judged"
    words = VERDICTS[judged["holds"]].removesuffix(" here")
    return f"{words}: {judged['evidence']}"
