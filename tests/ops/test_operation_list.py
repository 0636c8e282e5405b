"""docs/backend-operations.md: each operation has its operators, their dtypes, and tests."""

import re

import pytest

import keyfold as kf
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "backend-operations.md"
OPERATORS = ROOT / "docs" / "operators.md"


def listed():
    """The rows of the page: operators, dtypes, and tests, each a file and a function."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0] not in ("operation", "---"):
            operation, operators, dtypes, tests = cells
            names = re.findall(r"`(\w+::[\w.]+)`", operators)
            yield pytest.param(names, dtypes, re.findall("`(.+?)::(.+?)`", tests), id=operation)


def dtypes_of():
    """The dtypes of each operator, from the page that the rows print."""
    found = {}
    for line in OPERATORS.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| `(\w+::[\w.]+)\(", line):
            found[match[1]] = line.split(" | ")[3].strip()
    return found


@pytest.mark.parametrize(("operators", "dtypes", "tests"), list(listed()))
def test_an_operation_has_operators_dtypes_and_tests(operators, dtypes, tests):
    known = dtypes_of()
    for operator in operators:
        assert kf.get_op(operator).name == operator
        assert known[operator] in dtypes.split("; ")
    assert tests
    for file, name in tests:
        assert re.search(rf"^(def|fn) {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)


def test_no_operation_was_dropped():
    assert len(list(listed())) == 42
