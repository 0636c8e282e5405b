"""docs/backend-operations.md: each operation has its operators, their dtypes, and a test."""

import re

import pytest

import keyfold as kf
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "backend-operations.md"
OPERATORS = ROOT / "docs" / "operators.md"


def listed():
    """The rows of the page: operation, operators, dtypes, test."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0] not in ("operation", "---"):
            operation, operators, dtypes, test = cells
            yield pytest.param(
                re.findall(r"`(\w+::[\w.]+)`", operators), dtypes, test.strip("`"), id=operation
            )


def dtypes_of():
    """The dtypes of each operator, from the page that the rows print."""
    found = {}
    for line in OPERATORS.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| `(\w+::[\w.]+)\(", line):
            found[match[1]] = line.split(" | ")[3].strip()
    return found


@pytest.mark.parametrize(("operators", "dtypes", "test"), list(listed()))
def test_an_operation_has_operators_dtypes_and_a_test(operators, dtypes, test):
    known = dtypes_of()
    for operator in operators:
        assert kf.get_op(operator).name == operator
        assert known[operator] in dtypes.split("; ")
    assert (ROOT / test).is_file()


def test_no_operation_was_dropped():
    assert len(list(listed())) == 42
