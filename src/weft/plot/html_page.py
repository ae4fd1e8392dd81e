"""The HTML of a report: one file, no script, no external resource.

Text is escaped unless it is `Markup`, which only this package makes. Entry points: `page`,
`html_table`, `picture`, `fold`, `paragraph`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence


class Markup(str):
    """HTML that is already safe to put in a page."""

    __slots__ = ()


_STYLE = """
:root { --ink: #1f2937; --muted: #6b7280; --line: #e5e7eb; --soft: #f8fafc; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
header { border-bottom: 2px solid var(--ink); margin-bottom: 1.25rem; padding-bottom: .75rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .6rem; letter-spacing: -.005em; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; max-width: 46rem; }
nav { font-size: .9rem; display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin-top: .5rem; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.muted, figcaption, .interval { color: var(--muted); }
.muted { font-size: .9rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .34rem .9rem .34rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
td.n, th.n { text-align: right; }
td.n { white-space: nowrap; }
.interval { display: block; font-size: .74rem; }
.figures { display: grid; gap: .5rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
figure { margin: .5rem 0 1rem; min-width: 0; }
figure svg { width: 100%; height: auto; display: block; max-width: 44rem; }
figcaption { font-size: .82rem; margin-top: .3rem; max-width: 42rem; }
details { border-bottom: 1px solid var(--line); padding: .35rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; margin: .3rem 0; }
pre { overflow-x: auto; background: var(--soft); padding: .6rem .8rem; font-size: .8rem;
  line-height: 1.4; max-width: 100%; }
code { font-size: .85em; overflow-wrap: anywhere; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .5rem; }
@media (max-width: 40rem) { main { padding: 1rem .8rem 3rem; } h1 { font-size: 1.35rem; } }
@media print {
  main { max-width: none; padding: 0; } body { font-size: 10pt; } nav { display: none; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; } table { font-size: 7.5pt; width: 100%; }
  th, td, td.n { white-space: normal; overflow-wrap: anywhere; padding-right: .4rem; }
}
"""


def escape(value: object) -> Markup:
    """Any value as safe text; Markup passes unchanged."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def join(parts: Iterable[str]) -> Markup:
    """Parts one after another, each escaped unless it is Markup."""
    return Markup("\n".join(escape(part) for part in parts))


def paragraph(text: str, kind: str = "") -> Markup:
    """A paragraph; `kind` "muted" is for remarks."""
    attribute = f' class="{escape(kind)}"' if kind else ""
    return Markup(f"<p{attribute}>{escape(text)}</p>")


def bullets(items: Sequence[str]) -> Markup:
    """A list of remarks."""
    return Markup("<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>")


def html_table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], left_columns: int = 1
) -> Markup:
    """A table whose first `left_columns` are text and whose others are numbers."""
    return _table(heads, rows, set(range(left_columns, len(heads))))


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], numbers: set[int]) -> Markup:
    head = "".join(_cell("th", h, i in numbers) for i, h in enumerate(heads))
    body = "\n".join(
        "<tr>" + "".join(_cell("td", c, i in numbers) for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return Markup(
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, value: object, number: bool) -> str:
    content = "" if value is None else escape(value)
    if tag == "th":  # a long name may break after its dots
        content = Markup(content.replace(".", ".<wbr/>").replace("_", "_<wbr/>"))
    return f"<{tag}{' class=n' if number else ''}>{content}</{tag}>"


def row_table(rows: Sequence[Mapping[str, object]]) -> Markup:
    """Rows as mappings; the first column names them, columns of figures align right."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[row.get(h) for h in heads] for row in rows]
    columns = enumerate(zip(*cells, strict=True))
    numbers = {i for i, column in columns if i > 0 and all(map(_is_figure, column))}
    return _table(heads, cells, numbers)


def _is_figure(value: object) -> bool:
    """Numbers, also with a unit behind them, and gaps."""
    return value is None or str(value).lstrip("+-−")[:1].isdigit() or value in ("", "–")


def picture(svg: str, caption: str = "") -> Markup:
    """An SVG element of our own making, and what it shows."""
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure>{svg}{words}</figure>")


def pictures(figures: Sequence[str]) -> Markup:
    """Pictures beside each other where the screen has room."""
    return Markup('<div class="figures">' + "\n".join(figures) + "</div>")


def fold(summary: str, body: str) -> Markup:
    """Content that is folded until opened."""
    return Markup(f"<details><summary>{escape(summary)}</summary>{escape(body)}</details>")


def page(title: str, subtitle: str, sections: Sequence[tuple[str, str]], footer: str) -> str:
    """The whole file: a title, links to the sections, the sections."""
    links = "".join(f'<a href="#s{i}">{escape(t)}</a>' for i, (t, _) in enumerate(sections))
    body = "\n".join(
        f'<section id="s{i}"><h2>{escape(t)}</h2>\n{escape(content)}</section>'
        for i, (t, content) in enumerate(sections)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body><main>\n"
        f"<header><h1>{escape(title)}</h1>{paragraph(subtitle, 'muted')}"
        f"<nav>{links}</nav></header>\n"
        f"{body}\n<footer>{paragraph(footer, 'muted')}</footer>\n</main></body></html>\n"
    )
