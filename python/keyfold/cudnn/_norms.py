"""Normalizations."""

from __future__ import annotations

from typing import Any

from keyfold._errors import InvalidValue
from keyfold.cudnn._base import GraphBase, Options, integer, scalar, word
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["Norms"]

_Number = float | GraphTensor
_PHASES = ("inference", "training", "persistent_training")


def _trains(method: str, phase: str) -> bool:
    """Whether a phase returns statistics."""
    return word(phase, f"{method}(): norm_forward_phase") in _PHASES[1:]


class Norms(GraphBase):
    """Normalizations, with their gradients.

    Each method takes tensors of the graph, `compute_data_type=` and `name=`, and returns its
    results, virtual tensors until `set_output(True)`. An epsilon or momentum that is a number
    belongs to the graph; a tensor's is given when the graph is run.

    Raises:
        ShapeError: the shapes don't fit.
        InvalidValue: an attribute isn't one that cuDNN has.
        BindingError: an argument isn't a tensor of this graph.
    """

    def _norm(
        self,
        method: str,
        phase: str,
        inputs: dict[str, Any],
        outputs: list[str],
        options: Options,
        groups: int | None = None,
    ) -> tuple[GraphTensor, ...]:
        phase = word(phase, f"{method}(): norm_forward_phase")
        if phase not in _PHASES:
            raise InvalidValue(
                f"{method}(): norm_forward_phase is one of {', '.join(_PHASES)}, not {phase!r}"
            )
        mode = {"adalayernorm": "ada_layer_norm"}.get(method, method.replace("norm", "_norm"))
        attributes: dict[str, Any] = {"mode": mode, "phase": phase}
        if groups is not None:
            attributes["groups"] = integer(groups, f"{method}(): groups")
        return self._add(method, {"norm": attributes}, inputs, outputs, options)

    def _norm_backward(
        self,
        method: str,
        inputs: dict[str, Any],
        options: Options,
        groups: int | None = None,
        has_bias: bool = True,
    ) -> tuple[GraphTensor, ...]:
        forward = method.removesuffix("_backward")
        mode = {"adalayernorm": "ada_layer_norm"}.get(forward, forward.replace("norm", "_norm"))
        attributes: dict[str, Any] = {"mode": mode}
        if groups is not None:
            attributes["groups"] = integer(groups, f"{method}(): groups")
        outputs = ["dx", "dscale", "dbias"] if has_bias else ["dx", "dscale"]
        return self._add(method, {"norm_backward": attributes}, inputs, outputs, options)

    def batchnorm(
        self,
        input: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        in_running_mean: GraphTensor | None = None,
        in_running_var: GraphTensor | None = None,
        epsilon: _Number = 1e-5,
        momentum: _Number | None = None,
        norm_forward_phase: str = "training",
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor, GraphTensor, GraphTensor | None, GraphTensor | None]:
        """Normalize the elements of each channel, in training.

        `norm_forward_phase` is `training` or `persistent_training`, which asks for kernels that
        keep a channel's elements on the chip.

        Returns:
            The result, the mean, the inverse of the standard deviation, and the next running mean
            and variance, which are None without the running ones.
        """
        running = in_running_mean is not None and in_running_var is not None
        inputs = {
            "x": input,
            "scale": scale,
            "bias": bias,
            "epsilon": scalar(epsilon, "batchnorm(): epsilon"),
            "momentum": scalar(
                0.1 if momentum is None and running else momentum, "batchnorm(): momentum"
            ),
            "running_mean": in_running_mean,
            "running_variance": in_running_var,
        }
        outputs = ["y", "mean", "inv_variance"]
        outputs += ["next_running_mean", "next_running_variance"] if running else []
        if _trains("batchnorm", norm_forward_phase):
            options = (compute_data_type, name)
            made = self._norm("batchnorm", norm_forward_phase, inputs, outputs, options)
        else:
            raise InvalidValue("batchnorm() is for training: batchnorm_inference is another method")
        y, mean, inv_variance, *moved = made
        return y, mean, inv_variance, moved[0] if running else None, moved[1] if running else None

    def batchnorm_inference(
        self,
        input: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> GraphTensor:
        """Return scale (input - mean) inv_variance + bias, with the statistics given."""
        inputs = {
            "x": input,
            "mean": mean,
            "inv_variance": inv_variance,
            "scale": scale,
            "bias": bias,
        }
        (made,) = self._norm("batchnorm", "inference", inputs, ["y"], (compute_data_type, name))
        return made

    def layernorm(
        self,
        norm_forward_phase: str,
        input: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        epsilon: _Number = 1e-5,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None, GraphTensor | None]:
        """Normalize the dimensions in which `scale` isn't 1.

        Returns:
            The result, the mean, and the inverse of the standard deviation; the last two are None
            in the phase `inference`.
        """
        options = (compute_data_type, name)
        return self._forward("layernorm", norm_forward_phase, input, scale, bias, epsilon, options)

    def instancenorm(
        self,
        norm_forward_phase: str,
        input: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        epsilon: _Number = 1e-5,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None, GraphTensor | None]:
        """Normalize the elements of each image's channel; returns what `layernorm` returns."""
        options = (compute_data_type, name)
        return self._forward(
            "instancenorm", norm_forward_phase, input, scale, bias, epsilon, options
        )

    def adalayernorm(
        self,
        norm_forward_phase: str,
        input: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        epsilon: _Number = 1e-5,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None, GraphTensor | None]:
        """Normalize as `layernorm`, with a scale and bias for each example; returns the same."""
        options = (compute_data_type, name)
        return self._forward(
            "adalayernorm", norm_forward_phase, input, scale, bias, epsilon, options
        )

    def groupnorm(
        self,
        norm_forward_phase: str,
        input: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        groups: int,
        epsilon: _Number = 1e-5,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None, GraphTensor | None]:
        """Normalize each image's groups of channels; returns what `layernorm` returns."""
        options = (compute_data_type, name)
        return self._forward(
            "groupnorm", norm_forward_phase, input, scale, bias, epsilon, options, groups
        )

    def _forward(
        self,
        method: str,
        phase: str,
        input: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        epsilon: _Number,
        options: Options,
        groups: int | None = None,
    ) -> tuple[GraphTensor, GraphTensor | None, GraphTensor | None]:
        epsilon_input = scalar(epsilon, f"{method}(): epsilon")
        inputs = {"x": input, "scale": scale, "bias": bias, "epsilon": epsilon_input}
        trains = _trains(method, phase)
        outputs = ["y", "mean", "inv_variance"] if trains else ["y"]
        made = self._norm(method, phase, inputs, outputs, options, groups)
        return (made[0], made[1], made[2]) if trains else (made[0], None, None)

    def rmsnorm(
        self,
        norm_forward_phase: str,
        input: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor | None = None,
        epsilon: _Number = 1e-5,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor | None]:
        """Divide by the root of the mean square over the dimensions in which `scale` isn't 1.

        Returns:
            The result, and the inverse of that root, or None in the phase `inference`.
        """
        epsilon_input = scalar(epsilon, "rmsnorm(): epsilon")
        inputs = {"x": input, "scale": scale, "bias": bias, "epsilon": epsilon_input}
        trains = _trains("rmsnorm", norm_forward_phase)
        outputs = ["y", "inv_variance"] if trains else ["y"]
        made = self._norm("rmsnorm", norm_forward_phase, inputs, outputs, (compute_data_type, name))
        return made[0], made[1] if trains else None

    def batchnorm_backward(
        self,
        grad: GraphTensor,
        input: GraphTensor,
        scale: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, ...]:
        """Return the gradients of a batch norm's input, scale and bias."""
        options = (compute_data_type, name)
        return self._backward("batchnorm", grad, input, scale, mean, inv_variance, options)

    def layernorm_backward(
        self,
        grad: GraphTensor,
        input: GraphTensor,
        scale: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        *,
        epsilon: _Number | None = None,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, ...]:
        """Return the gradients of a layer norm's input, scale and bias.

        `epsilon` may be given, though `inv_variance` has it: libcudnn takes it here, too.
        """
        inputs = {
            "x": input,
            "dy": grad,
            "scale": scale,
            "mean": mean,
            "inv_variance": inv_variance,
            "epsilon": scalar(epsilon, "layernorm_backward(): epsilon"),
        }
        return self._norm_backward("layernorm_backward", inputs, (compute_data_type, name))

    def instancenorm_backward(
        self,
        grad: GraphTensor,
        input: GraphTensor,
        scale: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, ...]:
        """Return the gradients of an instance norm's input, scale and bias."""
        options = (compute_data_type, name)
        return self._backward("instancenorm", grad, input, scale, mean, inv_variance, options)

    def adalayernorm_backward(
        self,
        grad: GraphTensor,
        input: GraphTensor,
        scale: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, ...]:
        """Return the gradients of an adaptive layer norm's input, scale and bias."""
        options = (compute_data_type, name)
        return self._backward("adalayernorm", grad, input, scale, mean, inv_variance, options)

    def groupnorm_backward(
        self,
        grad: GraphTensor,
        input: GraphTensor,
        scale: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        groups: int,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, ...]:
        """Return the gradients of a group norm's input, scale and bias."""
        options = (compute_data_type, name)
        return self._backward("groupnorm", grad, input, scale, mean, inv_variance, options, groups)

    def _backward(
        self,
        forward: str,
        grad: GraphTensor,
        input: GraphTensor,
        scale: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        options: Options,
        groups: int | None = None,
    ) -> tuple[GraphTensor, ...]:
        inputs = {
            "x": input,
            "dy": grad,
            "scale": scale,
            "mean": mean,
            "inv_variance": inv_variance,
        }
        return self._norm_backward(f"{forward}_backward", inputs, options, groups)

    def rmsnorm_backward(
        self,
        grad: GraphTensor,
        input: GraphTensor,
        scale: GraphTensor,
        inv_variance: GraphTensor,
        has_dbias: bool = False,
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, GraphTensor, GraphTensor | None]:
        """Return the gradients of an RMS norm's input and scale, and of its bias if it has one."""
        inputs = {"x": input, "dy": grad, "scale": scale, "inv_variance": inv_variance}
        made = self._norm_backward(
            "rmsnorm_backward", inputs, (compute_data_type, name), has_bias=has_dbias
        )
        return made[0], made[1], made[2] if has_dbias else None
