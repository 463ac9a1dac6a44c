"""The result of a sweep in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results.report.words import percent
from results.sweep.points import NOT_THE_TARGET, Decision
from results.sweep.search import Kind
from results.sweep.spec import AxisSpec, PointRun, SweepSpec


def of_cell(spec: SweepSpec, cell: Mapping[str, Any]) -> str:
    """One or two sentences: where it holds, where it fails, and where it may be run."""
    axis = spec.searched
    if axis is None:
        return _of_point(cell)
    sentences = (_ends(axis, cell), _doubts(axis, cell), _knee(spec, axis, cell), _safe(spec, axis, cell))
    return " ".join(sentence for sentence in sentences if sentence)


def of_cells(cells: Sequence[Mapping[str, Any]], best: Sequence[int], good: int) -> str:
    """The result of all cells in one sentence, or of the only one in its own words."""
    if len(cells) == 1:
        return str(cells[0]["words"])
    if not best:
        return f"{good} of {len(cells)} points hold every objective."
    hold = f"{good} of {len(cells)} cells hold"
    names = " and ".join(name_of(cells[i]["at"]) for i in best)
    return f"{hold}; the largest safe operating point, {cells[best[0]]['safe']['text']}, is at {names}."


def name_of(at: Mapping[str, str]) -> str:
    """``prefill_chunk=64, chat.rate=4/s``: keys as short as they can be told apart."""
    last = [key.rpartition(".")[2] for key in at]
    return ", ".join(f"{short_key(key, last)}={value}" for key, value in at.items())


def short_key(key: str, last: Sequence[str]) -> str:
    """The last step of a long key; two steps are kept, and so is one whose last step another key has."""
    end = key.rpartition(".")[2]
    return end if key.count(".") > 1 and last.count(end) == 1 else key


def _of_point(cell: Mapping[str, Any]) -> str:
    said = {
        Decision.PASS: "Holds every objective.",
        Decision.FAIL: f"Fails: {_joined(cell['why'])}.",
        Decision.UNDECIDED: f"Undecided in the longest window: {_joined(cell['why'])}.",
        Decision.CLIENT: f"{NOT_THE_TARGET[0].upper()}{NOT_THE_TARGET[1:]}, was at its limit.",
    }
    return said[Decision(cell["kind"])] if cell["kind"] else "Not run to its end."


def _joined(why: Sequence[str]) -> str:
    return "; ".join(why) or "for no stated reason"


def _ends(axis: AxisSpec, cell: Mapping[str, Any]) -> str:
    bracket = cell["bracket"]
    low, high = (None if v is None else axis.text(v) for v in (bracket["pass"], bracket["fail"]))
    kind, key = cell["kind"], axis.key
    if kind == Kind.CLIENT:
        so_far = (
            f"It had passed at {low}{_seen(bracket, 'pass')}."
            if low
            else "Nothing was learned of the target."
        )
        return f"{key}: stopped, because {NOT_THE_TARGET}, was at its limit. {so_far}"
    if kind == Kind.BRACKET:
        return f"{key}: holds {low}{_seen(bracket, 'pass')}, fails at {high}{_seen(bracket, 'fail')}."
    if kind == Kind.AT_LEAST:
        end = "all that was asked" if bracket["pass"] == axis.high else "and nothing above was seen to fail"
        return f"{key}: holds at least {low}{_seen(bracket, 'pass')}, {end}."
    if kind == Kind.LOW_FAILS:
        return f"{key}: fails already at {high}, the lowest value{_seen(bracket, 'fail')}."
    above = f"; it fails at {high}" if high else ""
    return f"{key}: no value was seen to hold, the lowest could not be decided{above}."


def _seen(bracket: Mapping[str, Any], end: str) -> str:
    return " (seen twice)" if bracket[f"{end}_confirmed"] else " (seen once)"


def _doubts(axis: AxisSpec, cell: Mapping[str, Any]) -> str:
    parts = []
    if cell["disagreed"]:
        at = ", ".join(map(axis.text, cell["disagreed"]))
        parts.append(f"Two runs disagree at {at}: the bracket was widened beyond.")
    if cell["undecided"]:
        at = ", ".join(map(axis.text, cell["undecided"]))
        parts.append(f"Not decided in the longest window: {at}.")
    return " ".join(parts)


def _knee(spec: SweepSpec, axis: AxisSpec, cell: Mapping[str, Any]) -> str:
    below, above = cell["knee"]["below"], cell["knee"]["above"]
    if not spec.tests_saturation:
        return "Over-saturation was not tested: the window is shorter than 30 s."
    if below is None and above is None:
        return ""
    if above is None:
        return f"Knee not reached: not over-saturated up to {axis.text(below)}."
    if below is None:
        return f"Over-saturated from {axis.text(above)} on."
    words = f"Knee: not over-saturated at {axis.text(below)}, over-saturated at {axis.text(above)}."
    if cell["knee"]["contradicted"]:
        odd = ", ".join(map(axis.text, cell["knee"]["contradicted"]))
        words += f" (At {odd} it was not; the lower one counts.)"
    return words


def _safe(spec: SweepSpec, axis: AxisSpec, cell: Mapping[str, Any]) -> str:
    safe = cell["safe"]
    if safe["value"] is None:
        known = cell["kind"] in (Kind.LOW_FAILS, Kind.OPEN, Kind.CLIENT)
        return "" if known else f"No safe point: {safe['reason']}."
    of = {"saturation": "the knee", "objectives": "the failing end", "nothing": "the largest value tested"}
    limit = f"{of[safe['binds']]}, {axis.text(safe['limit'])}"
    at = "Safe operating point" if safe["binds"] != "nothing" else "Safe operating point, at least"
    below = 1 - safe["value"] / safe["limit"]
    room = f"{percent(spec.headroom)} of headroom below {limit}"
    if below > spec.headroom + 1e-6:
        room = f"{percent(below)} below {limit} ({percent(spec.headroom)} of headroom asked)"
    return f"{at}: {axis.text(safe['value'])}, {room}."


def notes(spec: SweepSpec, runs: Sequence[PointRun]) -> list[str]:
    """What a reader must know of the sweep as a whole."""
    found = []
    if spec.default_objective:
        found.append(f"The scenario has no gates; the objective is the default: {spec.objectives[0]}.")
    if spec.unjudged:
        found.append(f"No point can decide, so not asked: {'; '.join(spec.unjudged)}.")
    aside = sorted({text for run in runs for text in run.set_aside})
    if aside:
        found.append(f"This target cannot be asked, so set aside: {'; '.join(aside)}.")
    if not spec.tests_saturation:
        found.append(
            f"Windows of {spec.windows[0]:g} s cannot tell over-saturation, which needs 30 s: "
            "points pass on their objectives alone."
        )
    found += [f"{axis.key}: {axis.scaled}." for axis in spec.axes if axis.scaled]
    return found
