"""Pictures for docs/benchmarks/, as SVG: grouped bars, and lines over one quantity that grows.

matplotlib is an extra (``tidelog[bench]``) and imported on use. The files are the same for the same figures: no date, fixed ids.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SIZE_INCHES = (8.0, 4.2)
COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#868e96", "#c2255c")


def _figure() -> tuple[Any, Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tidelog"
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="y", color="#dee2e6")
    axes.set_axisbelow(True)
    return pyplot, figure, axes


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def bars(path: Path, title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> None:
    """A group of bars for each of ``groups``, one bar for each of ``series``; each bar says its value."""
    pyplot, figure, axes = _figure()
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        drawn = axes.bar(places, values, width * 0.95, label=label, color=COLOURS[number % len(COLOURS)])
        axes.bar_label(drawn, [short_number(value) for value in values], padding=2, fontsize=8)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.legend(frameon=False)
    _save(pyplot, figure, path)


def lines(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_is_logarithmic: bool = True,
    y_is_logarithmic: bool = False,
    x_names: Mapping[float, str] | None = None,
) -> None:
    pyplot, figure, axes = _figure()
    for number, (label, points) in enumerate(series.items()):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=label, color=COLOURS[number % len(COLOURS)])
    if x_is_logarithmic:
        axes.set_xscale("log")
    if y_is_logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if x_names is not None:
        axes.set_xticks(list(x_names), list(x_names.values()), minor=False)
        axes.minorticks_off()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.legend(frameon=False)
    _save(pyplot, figure, path)


def over_time(path: Path, title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """(second, milliseconds) of each interval; logarithmic, because a pause is many times as long as what is usual."""
    pyplot, figure, axes = _figure()
    for number, (label, points) in enumerate(series.items()):
        axes.plot(*zip(*points, strict=True), linewidth=1, label=label, color=COLOURS[number % len(COLOURS)])
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("milliseconds")
    axes.set_title(title)
    axes.legend(frameon=False)
    _save(pyplot, figure, path)


def short_number(value: float) -> str:
    for factor, suffix in ((1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"
