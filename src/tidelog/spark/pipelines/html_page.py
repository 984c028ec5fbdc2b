"""A page that is one file: no script, no font, no picture from elsewhere; it opens from a disk or a mail as from a server.

The policy in its head forbids the browser whatever is not in the file, so that a mistake in escaping would run nothing either.
Light or dark as the reader's system is; one column on a phone.
"""

from tidelog.spark.pipelines.html_elements import Html, element, join

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f8; --card: #ffffff; --ink: #14181d; --soft: #5c6670; --line: #e2e6ea; --sunken: #f1f3f5;
  --main: #0d6e78; --other: #b4c3c9; --good: #0b6b3a; --good-back: #e2f4ea; --warm: #8a5300; --warm-back: #fdf1dc;
  --bad: #a3261b; --bad-back: #fdeae8; --dull: #4a545e; --dull-back: #eceff2; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0e1215; --card: #161b1f; --ink: #e8ecef; --soft: #98a4ae; --line: #283037; --sunken: #1d2429;
  --main: #35b3bf; --other: #46545d; --good: #6fd69c; --good-back: #12301f; --warm: #f0b95b; --warm-back: #33260e;
  --bad: #f2958c; --bad-back: #371a17; --dull: #aab5be; --dull-back: #262e34; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.25rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0; }
h2 { font-size: 1.1rem; letter-spacing: -0.005em; margin: 2.5rem 0 0.75rem; }
.card > h2 { margin-top: 0; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: 0.35rem 0; }
small, .soft { color: var(--soft); font-size: 0.87rem; }
code, pre { font: 0.84rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
pre { margin: 0.25rem 0 0.9rem; padding: 0.7rem 0.85rem; background: var(--sunken); border-radius: 6px; overflow: auto;
  max-height: 22rem; white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
pre.command { user-select: all; border-left: 3px solid var(--main); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.15rem; min-width: 0; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0.85rem; margin: 1.6rem 0 0.9rem; }
.numbers dt { color: var(--soft); font-size: 0.87rem; }
.numbers dd { margin: 0.1rem 0 0; font-size: 2rem; line-height: 1.15; font-weight: 650; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.numbers dd small { display: block; font-size: 0.87rem; font-weight: 400; letter-spacing: 0; line-height: 1.4; margin-top: 0.2rem;
  overflow-wrap: anywhere; }
.numbers .good dd { color: var(--good); } .numbers .good dd small { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: 0.85rem; }
.chart { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.15rem;
  min-width: 0; }
.chart.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; margin-bottom: 0.5rem; }
.empty { color: var(--soft); }
.lower { fill: var(--main); } .upper { fill: var(--other); } .track { fill: var(--sunken); }
.grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.bars { list-style: none; margin: 0; padding: 0; }
.bars li { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0.1rem 0.75rem; margin: 0 0 0.6rem; }
.bars .name { overflow-wrap: anywhere; } .bars small { display: block; line-height: 1.35; margin-bottom: 0.15rem; }
.number { font-variant-numeric: tabular-nums; font-weight: 600; }
.bar { grid-column: 1 / -1; width: 100%; height: 7px; border-radius: 4px; display: block; }
.legend { display: flex; gap: 1.1rem; color: var(--soft); font-size: 0.87rem; margin: 0 0 0.6rem; }
.key::before { content: ""; display: inline-block; width: 0.7em; height: 0.7em; border-radius: 2px; margin-right: 0.45em; }
.key.lower::before { background: var(--main); } .key.upper::before { background: var(--other); }
.plot { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 0 0.6rem; }
.columns { width: 100%; height: 10.5rem; display: block; overflow: visible; }
.scale, .axis { color: var(--soft); font-size: 0.78rem; font-variant-numeric: tabular-nums; }
.scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right; margin: -0.6em 0; }
.axis { display: flex; justify-content: space-between; gap: 0.6rem; margin-top: 0.45rem; padding-left: 2rem; }
.error { margin: 0 0 0.85rem; }
.error header { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0.25rem 1rem; align-items: start; }
.error .count { font-size: 1.35rem; font-weight: 650; font-variant-numeric: tabular-nums; text-align: right; line-height: 1.2; }
.error .count small { display: block; font-weight: 400; }
.error .message { overflow-wrap: anywhere; margin: 0.1rem 0 0.5rem; }
.error .facts { color: var(--soft); font-size: 0.87rem; display: flex; flex-wrap: wrap; gap: 0.1rem 1.1rem; }
.error .facts span { overflow-wrap: anywhere; }
.sparkline { width: 9rem; height: 1.9rem; display: block; margin: 0.35rem 0 0 auto; }
.verdict { margin: 0.7rem 0 0.5rem; }
.pill { display: inline-block; border-radius: 99px; padding: 0.05rem 0.65rem; margin-right: 0.55rem; font-size: 0.84rem;
  font-weight: 600; }
.pill.replay { color: var(--good); background: var(--good-back); }
.pill.wait { color: var(--warm); background: var(--warm-back); }
.pill.fix { color: var(--bad); background: var(--bad-back); } .pill.foreign { color: var(--dull); background: var(--dull-back); }
details { margin-top: 0.6rem; } summary { cursor: pointer; color: var(--main); width: fit-content; }
summary:focus-visible { outline: 2px solid var(--main); outline-offset: 3px; border-radius: 3px; }
details h4 { font-size: 0.84rem; color: var(--soft); font-weight: 600; margin: 0.9rem 0 0; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
footer li { margin: 0.2rem 0; }
@media (max-width: 34rem) {
  main { padding: 1.4rem 0.9rem 3rem; } .numbers { grid-template-columns: 1fr 1fr; } .numbers dd { font-size: 1.5rem; }
  .card, .chart { padding: 0.85rem 0.9rem; } .columns { height: 8rem; } .sparkline { width: 5.5rem; }
  .axis span:nth-child(even):not(:last-child) { display: none; } }
@media print { body { background: none; } .card, .chart { break-inside: avoid; } }
"""


def page(title: str, *content: str | None) -> Html:
    """A whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    body = element("body", element("main", *content))
    return join(Html("<!doctype html>\n"), element("html", head, body, lang="en"), Html("\n"))


def number_card(label: str, value: str, note: str = "", *, is_good: bool = False) -> Html:
    return element(
        "div",
        element("dt", label),
        element("dd", value, element("small", note) if note else None),
        class_="card good" if is_good else "card",
    )
