"""Random numbers, softmax alone, grouped products, and what graphs don't have."""

from __future__ import annotations

from typing import Any

from tests.cudnn.probe.draft import Case, Draft, absent

SCORES, ROW = [2, 8, 512, 512], [2, 8, 512, 1]


def softmax(d: Draft, stats: bool = False) -> None:
    """Softmax of an input."""
    y, sums = d.g.softmax(d.t(SCORES), generate_stats=stats)
    d.real(y)
    if sums is not None:
        d.real(sums, ROW, "f32")


def softmax_by_hand(d: Draft) -> None:
    """The same, of its parts."""
    x = d.t(SCORES)
    greatest = d.virtual(d.red("MAX", x, ROW))
    powers = d.virtual(d.pw("EXP", d.virtual(d.pw("SUB", x, greatest))))
    d.real(d.pw("DIV", powers, d.virtual(d.red("ADD", powers, ROW))))


def experts(d: Draft) -> None:
    """Products of a mixture of experts."""
    weight = d.t([8, 512, 1024], stride=[512 * 1024, 1, 512])
    made = d.g.moe_grouped_matmul(d.t([1, 4096, 512]), weight, d.t([8, 1, 1], "i32"))
    d.real(made, [1, 4096, 1024])


def _cases() -> list[Case]:
    made = []

    def case(group: str, op: str, write: Any) -> None:
        made.append(Case(group, op, write))

    for kind in ("bernoulli", "uniform", "normal"):
        for seed in ("host", "device"):
            case("random", f"rng {kind}, {seed} seed", absent("operation RNG"))
    case("random", "rng bernoulli 4D (virtual) x tensor (dropout)", absent("operation RNG"))
    case("other", "SOFTMAX descriptor alone 4D", softmax)
    case("other", "SOFTMAX descriptor alone 4D + stats", lambda d: softmax(d, True))
    case("other", "softmax by hand (max, sub, exp, sum, div)", softmax_by_hand)
    case("other", "ROPE forward", absent("operation ROPE_FWD"))
    case("other", "ROPE backward", absent("operation ROPE_BWD"))
    case("other", "MOE grouped matmul", experts)
    for kind in ("quantize", "dequantize"):
        what = absent(f"operation BLOCK_SCALE_{kind.upper()}")
        case("other", f"block scale {kind} (e4m3, 32)", what)
    return made


CASES = _cases()
