"""Softmax and attention."""

from __future__ import annotations

from typing import Any

from keyfold._errors import BindingError, InvalidValue
from keyfold.cudnn._base import Options, integer, number, scalar, whole, word
from keyfold.cudnn._names import refused_by_attention
from keyfold.cudnn._norms import Norms
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Attention"]

_Number = float | GraphTensor
_Dropout = tuple[float, int | GraphTensor, int | GraphTensor]

_ALIGNMENTS = ("top_left", "bottom_right")


def _band(
    method: str,
    use_causal_mask: bool,
    use_causal_mask_bottom_right: bool,
    sliding_window_length: int | None,
    diagonal_alignment: str | None,
    diagonal_band_left_bound: int | None,
    diagonal_band_right_bound: int | None,
) -> dict[str, Any]:
    """The band of keys that a query sees, of arguments of which some say the same."""

    def one(name: str, *given: tuple[str, Any]) -> Any:
        """The value that arguments give, which is the same in all of them."""
        said = [(argument, value) for argument, value in given if value is not None]
        for argument, value in said[1:]:
            if value != said[0][1]:
                raise InvalidValue(
                    f"{method}(): {said[0][0]} says {name} {said[0][1]!r}, and {argument} says "
                    f"{value!r}: give one of them"
                )
        return said[0][1] if said else None

    def bound(name: str, given: int | None) -> tuple[str, int | None]:
        return f"{name}=", None if given is None else integer(given, f"{method}(): {name}")

    if diagonal_alignment is not None:
        diagonal_alignment = word(diagonal_alignment, f"{method}(): diagonal_alignment")
        if diagonal_alignment not in _ALIGNMENTS:
            raise InvalidValue(
                f'{method}(): diagonal_alignment is "top_left" or "bottom_right", not '
                f"{diagonal_alignment!r}"
            )
    causal = ("use_causal_mask", 0 if use_causal_mask else None)
    bottom = ("use_causal_mask_bottom_right", 0 if use_causal_mask_bottom_right else None)
    return {
        "right_bound": one(
            "the right bound",
            causal,
            bottom,
            bound("diagonal_band_right_bound", diagonal_band_right_bound),
        ),
        "left_bound": one(
            "the left bound",
            bound("sliding_window_length", sliding_window_length),
            bound("diagonal_band_left_bound", diagonal_band_left_bound),
        ),
        "alignment": one(
            "the alignment",
            (causal[0], "top_left" if use_causal_mask else None),
            (bottom[0], "bottom_right" if use_causal_mask_bottom_right else None),
            ("diagonal_alignment=", diagonal_alignment),
        )
        or "top_left",
    }


class Attention(Norms):
    """Softmax and scaled-dot-product attention.

    Tensors are batches, heads, sequence, features; keys and values may have fewer heads than
    queries.

    Masks are a band around a diagonal, which goes through the first query and the first key, or
    with `diagonal_alignment="bottom_right"` through the last of each. A query sees
    `diagonal_band_left_bound` keys up to the diagonal, that on it included, and
    `diagonal_band_right_bound` keys behind it; without a bound it sees all of them.
    `use_causal_mask` is a right bound of 0, `use_causal_mask_bottom_right` the same at the other
    diagonal, and `sliding_window_length` is a left bound.
    """

    def softmax(
        self,
        input: GraphTensor,
        *,
        generate_stats: bool = False,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None]:
        """Return softmax along the last dimension, and the logarithms of its sums."""
        outputs = ["y", "stats"] if generate_stats else ["y"]
        made = self._add("softmax", "softmax", {"x": input}, outputs, (compute_data_type, name))
        return made[0], made[1] if generate_stats else None

    def diagonal_band_mask(
        self,
        input: GraphTensor,
        fill: _Number,
        comparison: str = "cmp_ge",
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return the input where a comparison of row and column index holds, `fill` elsewhere.

        Args:
            input: matrices, in the last two dimensions.
            fill: a number, or a tensor of one element.
            comparison: `cmp_ge` keeps the elements on the diagonal and to its left: a causal mask.
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.
        """
        comparison = word(comparison, "diagonal_band_mask(): comparison")
        operation = {"diagonal_band_mask": {"comparison": comparison}}
        inputs = {"x": input, "b": scalar(fill, "diagonal_band_mask(): fill")}
        (made,) = self._add(
            "diagonal_band_mask", operation, inputs, ["y"], (compute_data_type, name)
        )
        return made

    def _attention(
        self,
        method: str,
        operation: str,
        inputs: dict[str, Any],
        outputs: list[str],
        options: Options,
        attn_scale: _Number | None,
        bias: GraphTensor | None,
        use_padding_mask: bool,
        seq_len_q: GraphTensor | None,
        seq_len_kv: GraphTensor | None,
        use_causal_mask: bool,
        use_causal_mask_bottom_right: bool,
        sliding_window_length: int | None,
        diagonal_alignment: str | None,
        diagonal_band_left_bound: int | None,
        diagonal_band_right_bound: int | None,
        dropout: _Dropout | None,
    ) -> tuple[GraphTensor, ...]:
        """Add attention or its gradient, of the arguments that both have."""
        if use_padding_mask != (seq_len_q is not None and seq_len_kv is not None):
            raise BindingError(
                f"{method}() takes seq_len_q= and seq_len_kv= with use_padding_mask=True, and "
                "neither without"
            )
        attributes = _band(
            method, use_causal_mask, use_causal_mask_bottom_right, sliding_window_length,
            diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound,
        )  # fmt: skip
        inputs |= {
            "attn_scale": scalar(attn_scale, f"{method}(): attn_scale"),
            "bias": bias,
            "seq_len_q": seq_len_q,
            "seq_len_kv": seq_len_kv,
        }
        if dropout is not None:
            if not isinstance(dropout, tuple | list) or len(dropout) != 3:
                raise BindingError(
                    f"{method}(): dropout is (probability, seed, offset), not {dropout!r}"
                )
            probability, seed, offset = dropout
            if not isinstance(probability, int | float):
                raise BindingError(
                    f"{method}(): the probability of dropout is a number, not {probability!r}"
                )
            attributes["dropout"] = number(float(probability))
            inputs |= {
                "seed": whole(seed, f"{method}(): the seed of dropout"),
                "offset": whole(offset, f"{method}(): the offset of dropout"),
            }
        return self._add(method, {operation: attributes}, inputs, outputs, options)

    @refused_by_attention
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
        sliding_window_length: int | None = None,
        diagonal_alignment: str | None = None,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: _Dropout | None = None,
        generate_stats: bool = False,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None]:
        """Return attention, softmax(attn_scale q k^T + bias) v, and the statistics of its rows.

        Args:
            q: the queries.
            k: the keys.
            v: the values.
            attn_scale: a number, or a tensor of one element; 1 by default.
            bias: the tensor that is added to the scores.
            use_padding_mask: whether each example has lengths of its own.
            seq_len_q: these lengths of queries, int32, one for each batch.
            seq_len_kv: these lengths of keys and values.
            use_causal_mask: whether a query sees no keys behind it.
            use_causal_mask_bottom_right: the same, the last query above the last key.
            sliding_window_length: as `diagonal_band_left_bound`.
            diagonal_alignment: `top_left`, the default, or `bottom_right`.
            diagonal_band_left_bound: how many keys a query sees up to the diagonal, that on it
                included, 1 or more.
            diagonal_band_right_bound: how many keys a query sees behind the diagonal, 0 or more.
            dropout: the probability that a weight is dropped, the seed and the offset.
            generate_stats: whether the statistics that `sdpa_backward` takes are returned, too.
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.

        Raises:
            InvalidValue: two arguments say different masks.
        """
        outputs = ["o", "stats"] if generate_stats else ["o"]
        made = self._attention(
            "sdpa", "sdpa", {"q": q, "k": k, "v": v}, outputs, (compute_data_type, name),
            attn_scale, bias, use_padding_mask, seq_len_q, seq_len_kv, use_causal_mask,
            use_causal_mask_bottom_right, sliding_window_length, diagonal_alignment,
            diagonal_band_left_bound, diagonal_band_right_bound, dropout,
        )  # fmt: skip
        return made[0], made[1] if generate_stats else None

    @refused_by_attention
    def sdpa_fp8(  # noqa: D417 # those of sdpa are there
        self,
        q: GraphTensor,
        k: GraphTensor,
        v: GraphTensor,
        descale_q: _Number,
        descale_k: _Number,
        descale_v: _Number,
        descale_s: _Number,
        scale_s: _Number,
        scale_o: _Number | None = None,
        *,
        attn_scale: _Number | None = None,
        bias: GraphTensor | None = None,
        use_padding_mask: bool = False,
        seq_len_q: GraphTensor | None = None,
        seq_len_kv: GraphTensor | None = None,
        use_causal_mask: bool = False,
        use_causal_mask_bottom_right: bool = False,
        sliding_window_length: int | None = None,
        diagonal_alignment: str | None = None,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: _Dropout | None = None,
        generate_stats: bool = False,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None, GraphTensor, GraphTensor]:
        """Return attention of 8-bit floats, which are multiplied by their scales.

        The arguments from `attn_scale` to `dropout` are those of `sdpa`.

        Args:
            q: the queries, of 8-bit floats.
            k: the keys.
            v: the values.
            descale_q: the factor of q: a number, or a tensor of one element.
            descale_k: the factor of k.
            descale_v: the factor of v.
            descale_s: the factor of the weights when they are read, 1 / `scale_s`.
            scale_s: the factor of the weights before they are rounded to 8 bits.
            scale_o: the factor of the result.
            generate_stats: whether the statistics of the rows are returned.
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.

        Returns:
            The result, the statistics or None, and the greatest magnitudes of the weights and of
            the result.
        """
        scales = {
            "descale_q": descale_q,
            "descale_k": descale_k,
            "descale_v": descale_v,
            "descale_s": descale_s,
            "scale_s": scale_s,
            "scale_o": scale_o,
        }
        inputs: dict[str, Any] = {"q": q, "k": k, "v": v}
        for port, given in scales.items():
            inputs[port] = scalar(given, f"sdpa_fp8(): {port}")
        outputs = ["o", "amax_s", "amax_o", *(["stats"] if generate_stats else [])]
        o, amax_s, amax_o, *stats = self._attention(
            "sdpa_fp8", "sdpa", inputs, outputs, (compute_data_type, name),
            attn_scale, bias, use_padding_mask, seq_len_q, seq_len_kv, use_causal_mask,
            use_causal_mask_bottom_right, sliding_window_length, diagonal_alignment,
            diagonal_band_left_bound, diagonal_band_right_bound, dropout,
        )  # fmt: skip
        return o, stats[0] if stats else None, amax_s, amax_o

    @refused_by_attention
    def sdpa_backward(  # noqa: D417
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
        sliding_window_length: int | None = None,
        diagonal_alignment: str | None = None,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        dropout: _Dropout | None = None,
        generate_dbias: bool = False,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, ...]:
        """Return the gradients of q, k and v, of that of `o`.

        The arguments from `attn_scale` to `dropout` are those that `sdpa` was given.

        Args:
            q: the queries.
            k: the keys.
            v: the values.
            o: the forward's result.
            dO: its gradient.
            stats: the forward's statistics.
            generate_dbias: whether the gradient of `bias` is returned, as the fourth.
            compute_data_type: what it computes in; the graph's by default.
            name: its name in errors and drawings.
        """
        inputs = {"q": q, "k": k, "v": v, "o": o, "do": dO, "stats": stats}
        outputs = ["dq", "dk", "dv", *(["dbias"] if generate_dbias else [])]
        return self._attention(
            "sdpa_backward", "sdpa_backward", inputs, outputs, (compute_data_type, name),
            attn_scale, bias, use_padding_mask, seq_len_q, seq_len_kv, use_causal_mask,
            use_causal_mask_bottom_right, sliding_window_length, diagonal_alignment,
            diagonal_band_left_bound, diagonal_band_right_bound, dropout,
        )  # fmt: skip
