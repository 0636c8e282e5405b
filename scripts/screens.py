"""Make a page of keyfold's objects as notebooks show them, light and dark side by side.

    python scripts/screens.py screens.html              # to open in a browser
    python scripts/screens.py screens.html --png        # and as screens.png, by headless Chromium

The left column has the colours of JupyterLab's light theme, the next ones those of its dark theme
and of VS Code's dark theme, and the last one has none: it follows the system.
"""

from __future__ import annotations

import argparse
import html
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import keyfold as kf
from keyfold._show._objects import of_tensor
from keyfold.testing import delayed_device

THEMES = {
    "JupyterLab light": (
        'data-jp-theme-light="true"',
        "background:#fff;color:#000;--jp-content-font-color1:rgba(0,0,0,.87);"
        "--jp-ui-font-family:sans-serif;--jp-code-font-family:Menlo,Consolas,monospace",
    ),
    "JupyterLab dark": (
        'data-jp-theme-light="false"',
        "background:#111;color:#fff;--jp-content-font-color1:rgba(255,255,255,1);"
        "--jp-ui-font-family:sans-serif;--jp-code-font-family:Menlo,Consolas,monospace",
    ),
    "VS Code dark": (
        'class="theme vscode-dark"',
        "background:#1e1e1e;color:#ccc;--vscode-editor-foreground:#d4d4d4;"
        "--vscode-font-family:sans-serif;--vscode-editor-font-family:Menlo,Consolas,monospace",
    ),
    "no theme": ("", ""),
}

# The rules of JupyterLab that all tables and texts of outputs get.
JUPYTER = """
[data-jp-theme-light] table{border-collapse:collapse;border-spacing:0;border:none;font-size:12px;
table-layout:fixed;margin-left:auto;margin-bottom:1em;margin-right:auto}
[data-jp-theme-light] td,[data-jp-theme-light] th,[data-jp-theme-light] tr{vertical-align:middle;
padding:.5em;line-height:normal;white-space:normal;max-width:none;border:none;text-align:right}
[data-jp-theme-light="true"] tbody tr:nth-child(odd){background:#f5f5f5}
[data-jp-theme-light="false"] tbody tr:nth-child(odd){background:#212121}
"""

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>keyfold</title><style>
:root{color-scheme:light dark}body{margin:0;font:14px sans-serif}
main{display:grid;grid-template-columns:repeat(%d,1fr)}
section{padding:10px 18px;overflow:hidden}h2{font-size:13px;font-weight:400;opacity:.8;
margin:16px 0 2px}%s</style></head><body><main>%s</main></body></html>
"""


def forms() -> Iterator[tuple[str, object]]:
    """Yield what is shown: a line of code, and the object that it gives."""
    scale = kf.custom_op("screens::scale", _scale, mutates_args=())
    kf.register_autograd("screens::scale", lambda ctx, grad: (grad * 2.0, None))
    softplus = kf.elementwise("screens::softplus(Tensor x) -> Tensor", "log1p(exp(x))")
    x = kf.asarray(np.linspace(-1.0, 1.0, 12).reshape(3, 4))
    yield "x", x
    yield "kf.zeros((1000, 1000), dtype='float32')", kf.zeros((1000, 1000), dtype="float32")
    yield "kf.empty((3, 4), device='meta')", kf.empty((3, 4), device="meta")
    shown: list[str] = []

    def look(row: kf.Tensor) -> kf.Tensor:
        shown.append(of_tensor(row))
        return row

    kf.vmap(look)(x)
    yield "an example of a batch, in vmap", _Shown(shown[0])
    with delayed_device(devices=1) as late:
        yield "on a device", kf.ones((40, 50)).to(late.devices[0])
        yield "kf.backends()", kf.backends()
    yield "scale", scale
    yield (
        "kf.ops.aten.add.default.table(fallbacks=True)",
        kf.ops.aten.add.default.table(fallbacks=True),
    )
    yield "kf.ops.aten.add", kf.ops.aten.add
    with kf.include_keys("Tracer"):
        yield "kf.explain(scale, x)", kf.explain(scale.operator, x)
    yield (
        "kf.explain(kf.ops.aten.add, x, on_meta)",
        kf.explain("aten::add", x, kf.empty((3, 4), device="meta")),
    )
    with kf.profile() as p:
        for _ in range(3):
            with p.range("step <1>"):
                softplus(scale(x)).sum()
    yield "p.table()", p.table()
    yield "kf.trace(f, x)", kf.trace(lambda x: softplus(scale(x) + 1.0).sum(), x)
    yield "softplus.expression", softplus.expression
    yield "softplus", softplus
    yield "kf.opcheck(scale, (x,))", kf.opcheck(scale.operator, (x,), raise_exception=False)
    wrong = kf.empty((2,), device="meta")
    kf.register_fake("screens::scale", lambda x, k: wrong, override="shadow")
    yield (
        "kf.opcheck(...), with a wrong Meta kernel",
        kf.opcheck(
            scale.operator, (x,), tests=("schema", "meta", "autocast"), raise_exception=False
        ),
    )
    table = kf.DispatchTable("softmax", device=["cpu"], dtype=["float32", "float64"], rows=[1, 8])
    table.impl(rows=8)(_scale)
    yield "a DispatchTable", table


class _Shown:
    """HTML that was made at another time."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text


def _scale(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return x * k


def document(themes: list[str]) -> str:
    """Return the page.

    Args:
        themes: the names of its columns.
    """
    shown = "".join(
        f"<h2><code>{html.escape(line)}</code></h2>{thing._repr_html_()}"  # type: ignore[attr-defined]
        for line, thing in forms()
    )
    columns = "".join(
        f'<section {attributes} style="{style}"><b>{name}</b>{shown}</section>'
        for name, (attributes, style) in THEMES.items()
        if name in themes
    )
    return PAGE % (len(themes), JUPYTER, columns)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path, help="the file to write the page to")
    parser.add_argument("--png", action="store_true", help="and a picture of it beside it")
    parser.add_argument("--size", default="2400,3600", help="the picture's: default 2400,3600")
    parser.add_argument("--theme", action="append", choices=THEMES, help="by default all")
    options = parser.parse_args()
    options.page.write_text(document(options.theme or list(THEMES)), encoding="utf-8")
    if options.png:
        browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
        picture = options.page.with_suffix(".png").resolve()
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars"]
        command += [f"--screenshot={picture}", f"--window-size={options.size}"]
        subprocess.run([*command, options.page.resolve().as_uri()], check=True)


if __name__ == "__main__":
    main()
