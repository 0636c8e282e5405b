"""HTML for notebooks: one style, and the few forms that all objects are shown in.

A form is a text without scripts and without anything from outside. It takes its letters' colour
from the page around it, and its lines and shades are grey with some transparency, so that it is
readable on any background; the marks of a check bring their own background. All text is escaped
here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

__all__ = [
    "DARK",
    "LIGHT",
    "STYLE",
    "Mark",
    "block",
    "code",
    "notes",
    "page",
    "pairs",
    "table",
    "words",
]

# The colours of marks, and of the words on them.
LIGHT = {"good": "#1a7f37", "bad": "#c0202c", "other": "#57606a", "on": "#ffffff"}
DARK = {"good": "#7ee2a0", "bad": "#ffa198", "other": "#b1bac4", "on": "#0d1117"}


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--kf-{name}:{colour}" for name, colour in colours.items())


def _on_pages(theme: str, is_light: str) -> str:
    """The selector of what is on a page that says itself whether it is dark."""
    pages = (
        f'[data-jp-theme-light="{is_light}"]',  # JupyterLab
        f".vscode-{theme}",
        f'[data-theme="{theme}"]',  # Sphinx
        f'[theme="{theme}"]',  # Colab
    )
    return ",".join(f"{page} .keyfold" for page in pages)


# JupyterLab styles the tables of outputs itself, by selectors of two classes and elements.
STYLE = f"""
.keyfold{{{_variables(LIGHT)};color:var(--jp-content-font-color1,var(--vscode-editor-foreground,inherit));
font:13px/1.5 var(--jp-ui-font-family,var(--vscode-font-family,system-ui,sans-serif));
margin:4px 0;max-width:100%;overflow-x:auto}}
@media (prefers-color-scheme:dark){{.keyfold{{{_variables(DARK)}}}}}
{_on_pages("light", "true")}{{{_variables(LIGHT)}}}
{_on_pages("dark", "false")}{{{_variables(DARK)}}}
.keyfold .kf-title{{font-weight:600;padding:2px 8px 6px 0}}
.keyfold .kf-title code{{font-weight:400;background:none;padding:0}}
.keyfold code,.keyfold pre.kf-text,.keyfold table.kf-table td{{font-size:12px;line-height:1.5;
background:none;color:inherit;
font-family:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,monospace))}}
.keyfold pre.kf-text{{margin:0 0 6px;padding:8px 10px;overflow-x:auto;white-space:pre;
background:rgba(128,128,128,.1);border-radius:4px}}
.keyfold table.kf-table{{border-collapse:collapse;border:0;margin:0;width:auto;table-layout:auto}}
.keyfold table.kf-table tr{{background:none}}
.keyfold table.kf-table th,.keyfold table.kf-table td{{text-align:left;vertical-align:top;
padding:3px 14px 3px 8px;border:0;border-bottom:1px solid rgba(128,128,128,.3);
white-space:pre-wrap;overflow-wrap:break-word;max-width:48em}}
.keyfold table.kf-table th{{font-size:12px;font-weight:600;white-space:nowrap}}
.keyfold table.kf-table thead th{{background:rgba(128,128,128,.14);
border-bottom-color:rgba(128,128,128,.6)}}
.keyfold table.kf-table .kf-right{{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}}
.keyfold table.kf-table tbody tr:hover{{background:rgba(128,128,128,.1)}}
.keyfold .kf-note{{font-size:12px;padding:4px 8px 0}}
.keyfold .kf-mark{{border-radius:9px;padding:1px 9px;font-weight:600;white-space:nowrap;
color:var(--kf-on);background:var(--kf-other)}}
.keyfold .kf-good{{background:var(--kf-good)}}
.keyfold .kf-bad{{background:var(--kf-bad)}}
""".replace("\n", "")


class Mark(str):
    """A cell that is a coloured mark.

    Attributes:
        kind: `good`, `bad` or `other`.
    """

    kind: str

    def __new__(cls, text: str, kind: str) -> Mark:
        """Make the mark of a text."""
        mark = super().__new__(cls, text)
        mark.kind = kind
        return mark


def _escape(text: str) -> str:
    """A text as HTML, in which a half of a surrogate pair can't be written."""
    import html

    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _inner(text: str) -> str:
    """A cell's content."""
    if isinstance(text, Mark):
        return f'<span class="kf-mark kf-{text.kind}">{_escape(text)}</span>'
    # A line may end behind a folder's name.
    return _escape(text).replace("/", "/<wbr>")


def page(title: str, *parts: str) -> str:
    """Return an object's whole HTML: style, title and parts.

    Args:
        title: the title, as HTML.
        parts: what the functions here return.
    """
    head = f'<div class="kf-title">{title}</div>' if title else ""
    return f'<div class="keyfold"><style>{STYLE}</style>{head}{"".join(parts)}</div>'


def code(text: str) -> str:
    """Return code inside of a line."""
    return f"<code>{_escape(text)}</code>"


def block(text: str) -> str:
    """Return text whose line breaks and spaces count."""
    return f'<pre class="kf-text">{_escape(text)}</pre>'


def words(text: str) -> str:
    """Return plain words."""
    return _escape(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table with a head.

    Args:
        head: the columns' titles.
        rows: the cells.
        right: the columns that are aligned to the right, for numbers.
    """
    side = ['class="kf-right"' if at in right else "" for at in range(len(head))]
    titles = "".join(
        f'<th scope="col"{" " * bool(css)}{css}>{_inner(cell)}</th>'
        for cell, css in zip(head, side, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' ' * bool(css)}{css}>{_inner(cell)}</td>"
            for cell, css in zip(row, side, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<table class="kf-table"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of heads, at its left, and texts."""
    body = "".join(
        f'<tr><th scope="row">{_inner(head)}</th><td>{_inner(text)}</td></tr>'
        for head, text in rows
    )
    return f'<table class="kf-table"><tbody>{body}</tbody></table>'


def notes(lines: Iterable[str]) -> str:
    """Return lines of plain words below a table."""
    return "".join(f'<div class="kf-note">{_escape(line)}</div>' for line in lines)
