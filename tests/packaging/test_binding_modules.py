"""Which module of crates/python uses which: three layers, and no circles."""

from __future__ import annotations

import re

from tests.helpers.paths import ROOT

SOURCES = ROOT / "crates" / "python" / "src"

# A layer uses itself and those before it.
LAYERS = ["marshal", "call", "classes"]

USE = re.compile(r"^\s*(?:pub(?:\(\w+\))? )?use ([^;]+);", re.MULTILINE)

Module = tuple[str, ...]


def modules() -> dict[Module, str]:
    """The text of each module, without comments, by its path in the crate."""
    found = {}
    for path in SOURCES.rglob("*.rs"):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        parts = parts[:-1] if parts[-1] in ("mod", "lib") else parts
        found[parts] = re.sub(r"//.*", "", path.read_text())
    return found


def expanded(tree: str) -> list[str]:
    """The paths of a `use`: `a::{b, c::{d, e}}` are three."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        return [head.split(" as ")[0].strip()]
    items, depth = [""], 0
    for letter in rest[: rest.rindex("}")]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return [head.strip() + path for item in items if item.strip() for path in expanded(item)]


def module_of(path: str, user: Module, known: dict[Module, str]) -> Module | None:
    """The module that a path in `user` leads to; None where it leads out of the crate."""
    first, *rest = path.split("::")
    if first == "crate":
        found: Module = ()
    elif first in ("self", "super"):
        found = user
        rest = [first, *rest]
    elif (*user, first) in known:
        found, rest = user, [first, *rest]
    else:
        return None
    for name in rest:
        if name == "super":
            found = found[:-1]
        elif name != "self" and (*found, name) in known:
            found = (*found, name)
        elif name != "self":
            break
    return found


def graph(known: dict[Module, str]) -> dict[Module, set[Module]]:
    """The modules that each one names, in `use` and elsewhere."""
    edges = {}
    for user, text in known.items():
        uses = [path for tree in USE.findall(text) for path in expanded(tree)]
        others = re.findall(r"(?<![\w:])\w+(?:::\w+)+", USE.sub("", text))
        found = {module_of(re.sub(r"\s", "", path), user, known) for path in uses + others}
        edges[user] = {module for module in found if module and module != user}
    return edges


def circles(edges: dict[Module, set[Module]]) -> list[set[Module]]:
    """The sets of modules that lead to each other."""
    reached = {}
    for start in edges:
        reached[start], todo = set(), [start]
        while todo:
            new = edges[todo.pop()] - reached[start]
            reached[start] |= new
            todo += new
    return [{b for b in reached[a] if a in reached[b]} for a in edges if a in reached[a]]


def test_no_modules_of_the_binding_use_each_other():
    edges = graph(modules())
    assert len(edges) > 70
    assert sum(len(used) for used in edges.values()) > 300
    assert circles(edges) == []


def test_the_layers_of_the_binding_use_those_below_only():
    upwards = [
        f"{'::'.join(user)} uses {'::'.join(used)}"
        for user, all_used in graph(modules()).items()
        for used in all_used
        if user and LAYERS.index(used[0]) > LAYERS.index(user[0])
    ]
    assert upwards == []


def test_a_circle_is_found():
    texts = {
        ("a",): "use crate::b::{self, thing};",
        ("b",): "fn f() {\n    use super::e;\n    super::c::g();\n}",
        ("c",): "use super::a;",
        ("d",): "pub(crate) use crate::a;",
    }
    assert circles(graph(texts)) == [{("a",), ("b",), ("c",)}] * 3


def test_every_module_is_in_a_layer():
    assert {path[0] for path in modules() if path} == set(LAYERS)
