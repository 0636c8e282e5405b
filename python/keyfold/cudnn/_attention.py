"""Softmax and attention."""

from __future__ import annotations

from typing import Any

from keyfold._errors import BindingError
from keyfold.cudnn._base import number
from keyfold.cudnn._norms import Norms
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Attention"]

_Number = float | GraphTensor
_Dropout = tuple[float, int | GraphTensor, int | GraphTensor]


class Attention(Norms):
    """Softmax and scaled-dot-product attention.

    Tensors are batches, heads, sequence, features; keys and values may have fewer heads than
    queries. Masks: `use_causal_mask` hides the keys behind each query, with the first query above
    the first key; `use_causal_mask_bottom_right` with the last above the last; `left_bound` and
    `right_bound` say how many keys a query sees up to that diagonal and behind it.
    """

    def softmax(
        self, input: GraphTensor, *, generate_stats: bool = False, **options: Any
    ) -> tuple[GraphTensor, GraphTensor | None]:
        """Return softmax along the last dimension, and the logarithms of its sums."""
        outputs = ["y", "stats"] if generate_stats else ["y"]
        made = self._add("softmax", "softmax", {"x": input}, outputs, **options)
        return made[0], made[1] if generate_stats else None

    def diagonal_band_mask(
        self, input: GraphTensor, fill: _Number, comparison: str = "cmp_ge", **options: Any
    ) -> GraphTensor:
        """Return the input where a comparison of row and column index holds, `fill` elsewhere.

        Args:
            input: matrices, in the last two dimensions.
            fill: a number, or a tensor of one element.
            comparison: `cmp_ge` keeps the elements on the diagonal and to its left: a causal mask.
            **options: `compute_data_type` and `name`.
        """
        operation = {"diagonal_band_mask": {"comparison": comparison.lower()}}
        inputs = {"x": input, "b": self._number(fill)}
        (made,) = self._add("diagonal_band_mask", operation, inputs, ["y"], **options)
        return made

    def _attention(
        self,
        method: str,
        inputs: dict[str, Any],
        outputs: list[str],
        attn_scale: _Number | None,
        bias: GraphTensor | None,
        use_padding_mask: bool,
        seq_len_q: GraphTensor | None,
        seq_len_kv: GraphTensor | None,
        use_causal_mask: bool,
        use_causal_mask_bottom_right: bool,
        left_bound: int | None,
        right_bound: int | None,
        dropout: _Dropout | None,
        options: dict[str, Any],
    ) -> tuple[GraphTensor, ...]:
        if use_padding_mask != (seq_len_q is not None and seq_len_kv is not None):
            raise BindingError(
                f"{method}() takes seq_len_q= and seq_len_kv= with use_padding_mask=True, and "
                "neither without"
            )
        if (use_causal_mask or use_causal_mask_bottom_right) and right_bound is None:
            right_bound = 0
        attributes: dict[str, Any] = {
            "right_bound": right_bound,
            "left_bound": left_bound,
            "alignment": "bottom_right" if use_causal_mask_bottom_right else "top_left",
        }
        inputs |= {
            "attn_scale": self._number(attn_scale),
            "bias": bias,
            "seq_len_q": seq_len_q,
            "seq_len_kv": seq_len_kv,
        }
        if dropout is not None:
            if not isinstance(dropout, tuple | list) or len(dropout) != 3:
                raise BindingError(
                    f"{method}(): dropout is (probability, seed, offset), not {dropout!r}"
                )
            attributes["dropout"] = number(float(dropout[0]))
            inputs |= {"seed": self._whole(dropout[1]), "offset": self._whole(dropout[2])}
        return self._add(method, {method: attributes}, inputs, outputs, **options)

    def _whole(self, given: int | GraphTensor) -> GraphTensor:
        if isinstance(given, GraphTensor):
            return given
        return self._own(self._native.scalar(int(given), "int64", ""))

    def sdpa(
        self,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        *,
        attn_scale: _Number | None = None,
        bias: GraphTensor | None = None,
        use_padding_mask: bool = False,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        left_bound: int | None = None,
        right_bound: int | None = None,
        dropout: _Dropout | None = None,
        generate_stats: bool = False,
        **options: Any,
    ) -> tuple[GraphTensor, GraphTensor | None]:
        """Return attention, softmax(attn_scale q k^T + bias) v, and the statistics of its rows.

        Args:
            q: the queries.
            k: the keys.
            v: the values.
            attn_scale: a number, or a tensor of one element; 1 by default.
            bias: what is added to the scores.
            use_padding_mask: whether each example has lengths of its own.
            seq_len_q: these lengths of queries, int32, one for each batch.
            seq_len_kv: these lengths of keys and values.
            use_causal_mask: whether a query sees no keys behind it.
            use_causal_mask_bottom_right: the same, the last query above the last key.
            left_bound: how many keys, less one, a query sees up to the diagonal.
            right_bound: how many keys a query sees behind the diagonal.
            dropout: the probability that a weight is dropped, the seed and the offset.
            generate_stats: whether the statistics that `sdpa_backward` takes are returned, too.
            **options: `compute_data_type` and `name`.
        """
        inputs = {"q": q, "k": k, "v": v}
        made = self._attention(
            "sdpa", inputs, ["o", "stats"] if generate_stats else ["o"], attn_scale, bias,
            use_padding_mask, seq_len_q, seq_len_kv, use_causal_mask,
            use_causal_mask_bottom_right, left_bound, right_bound, dropout, options,
        )  # fmt: skip
        return made[0], made[1] if generate_stats else None

    def sdpa_backward(
        self,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        o: GraphTensor,
        dO: GraphTensor,  # noqa: N803 # NVIDIA's frontend's name
        stats: GraphTensor,
        *,
        attn_scale: _Number | None = None,
        bias: GraphTensor | None = None,
        use_padding_mask: bool = False,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        left_bound: int | None = None,
        right_bound: int | None = None,
        dropout: _Dropout | None = None,
        **options: Any,
    ) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
        """Return the gradients of q, k and v, of that of `o`; the rest is as in the forward."""
        inputs = {"q": q, "k": k, "v": v, "o": o, "do": dO, "stats": stats}
        dq, dk, dv = self._attention(
            "sdpa_backward", inputs, ["dq", "dk", "dv"], attn_scale, bias,
            use_padding_mask, seq_len_q, seq_len_kv, use_causal_mask,
            use_causal_mask_bottom_right, left_bound, right_bound, dropout, options,
        )  # fmt: skip
        return dq, dk, dv
