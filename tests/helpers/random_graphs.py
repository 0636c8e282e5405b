"""Random cuDNN graphs with their gradients, and what references compute of the same numbers."""

from collections import Counter

import numpy as np

import keyfold as kf
from tests.helpers.graph_references import EIGHT_BITS, float8_numbers

counts = Counter()


class Dag:
    """A graph that grows at its end, each operation with its gradient and a reference.

    Its values are what it began with and the operations' results, by number. An operation reads the
    end, and for joins another value, too, which may be read any number of times.
    """

    def __init__(self, seed, io="float32"):
        self.rng = np.random.default_rng(seed)
        self.graph = kf.cudnn.Graph(io_data_type=io, name="random")
        self.io = io
        # The arrays that a plan is given, and those of references: numbers, 8-bit floats decoded.
        self.arrays, self.numbers = {}, {}
        # Pairs of a leaf and its gradient's tensor; functions of a reference; functions from a
        # result's gradient to the inputs'; the numbers of the values that operations read.
        self.gradients, self.forwards, self.backwards, self.sources = [], [], [], []
        # Further outputs, each with the index of its operation and a function of its input.
        self.further = []
        space = self.pick(1, 2, 2, 2, 3)
        sizes = (
            [(1, 2, 3), (2, 4, 6), (4, 5, 7), (3, 6, 8)]
            if space < 3
            else [(1, 2), (2, 4), *[(2, 3)] * 3]
        )
        self.begin = self.input(*(self.pick(*of) for of in sizes[: space + 2]))
        self.values = [self.begin]
        self.goes_on_from(0)
        if self.begin.data_type != io:
            self.grows(self.graph.identity(self.begin), lambda R, x, at: x, lambda dy: dy)

    def pick(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def input(self, *dims, data_type=None):
        """Adds an input, packed or with its channels last; by default one in four has 8 bits."""
        name = f"input{len(self.arrays)}"
        last = len(dims) > 2 and self.pick(True, False)
        stored = [dims[0], *dims[2:], dims[1]] if last else dims
        data_type = data_type or self.pick(*[self.io] * 6, *EIGHT_BITS)
        if data_type in EIGHT_BITS:
            numbers = float8_numbers(data_type)
            small = np.flatnonzero((np.abs(numbers) <= 1.5) & (np.abs(numbers) >= 0.1))
            array = self.rng.choice(small, size=stored).astype(np.uint8)
        else:
            array = self.rng.uniform(-1.5, 1.5, size=stored).astype(data_type)
        if last:
            array = np.moveaxis(array, -1, 1)
        tensor = self.graph.tensor_like(array, name=name).set_data_type(data_type)
        self.arrays[tensor] = array
        decoded = numbers[array] if data_type in EIGHT_BITS else array.astype(np.float64)
        self.numbers[tensor] = decoded
        return tensor

    def given(self, array, name):
        """Adds an input that references don't differentiate."""
        tensor = self.graph.tensor_like(array, name=name)
        self.arrays[tensor] = array
        return tensor

    @property
    def end(self):
        """The tensor that the next operation reads."""
        return self.values[self.at]

    def goes_on_from(self, value):
        """Makes another value the end."""
        self.at = value

    def grows(self, end, forward, backward, *others):
        """Takes an operation's result, a reference's function, and that of the gradient.

        Operations that read `others`, numbers of values, beside the end have functions of them all.
        """
        self.sources.append((self.at, *others))
        self.forwards.append(forward)
        self.backwards.append(backward)
        self.values.append(end)
        self.at = len(self.values) - 1

    def has_gradient(self, leaf, tensor):
        """Makes a leaf's gradient an output."""
        self.gradients.append((leaf, tensor.set_data_type(self.io).set_output(True)))

    def also(self, tensor, function):
        """Makes a further result of the operation that grows next an output.

        It is a copy that is rounded to the output's data type: the gradient may amplify roundings.
        """
        copy = self.graph.identity(tensor).set_output(True)
        self.further.append((copy, len(self.forwards), function))

    def sums_to(self, dy, leaf):
        """The gradient of a tensor that was broadcast."""
        return dy if dy.dim == leaf.dim else self.graph.reduction(dy, "add", dim=leaf.dim)


class Drawn:
    """A random graph with its gradients, its arrays, and the results of references."""

    def __init__(self, kinds, seed, io="float32"):
        c = self.dag = Dag(seed, io)
        for kind in kinds:
            kind(c)
        self.kinds = kinds
        weight = c.given(c.rng.uniform(-1.5, 1.5, size=c.end.dim).astype(io), "weight")
        self.weight = c.arrays[weight].astype(np.float64)
        self.rounded = None
        if c.pick(True, False):
            data_type = c.pick(*EIGHT_BITS)
            self.rounded = c.graph.identity(c.end).set_data_type(data_type).set_output(True)
        # Gradients of values: a value that is read several times has their sum.
        ds = {c.at: c.graph.identity(weight)}
        # An end that reads as it was given is no result.
        self.y = c.graph.identity(c.end).set_output(True)
        for index in reversed(range(len(c.sources))):
            made = c.backwards[index](ds.pop(index + 1))
            for source, d in zip(
                c.sources[index], made if isinstance(made, tuple) else (made,), strict=True
            ):
                ds[source] = c.graph.add(ds[source], d) if source in ds else d
        c.has_gradient(c.begin, c.graph.identity(ds[0]))
        c.graph.validate()

    def run(self, device, precision):
        """The outputs on a device, copied to the host."""
        plan = self.dag.graph.build(device=device, precision=precision)
        arrays = {}
        for tensor, array in self.dag.arrays.items():
            # Copies keep the strides of arrays whose channels are last.
            last = np.moveaxis(array, 1, -1) if array.ndim > 2 else array
            if last.flags.c_contiguous and array.ndim > 2:
                there = kf.asarray(np.ascontiguousarray(last)).to(device)
                order = [0, array.ndim - 1, *range(1, array.ndim - 1)]
                arrays[tensor] = there.permute(order)
            else:
                arrays[tensor] = kf.asarray(array).to(device)
        out = plan(arrays)
        return {tensor: np.array(array.to("cpu")) for tensor, array in out.items()}

    def errors(self, out, reference):
        """The greatest error of the outputs, and of the gradients, in parts of 1 and the number."""
        c, R = self.dag, reference
        leaves = {tensor: R.leaf(numbers) for tensor, numbers in c.numbers.items()}

        def values(leaves):
            made = [leaves[c.begin]]
            for function, sources in zip(c.forwards, c.sources, strict=True):
                made.append(function(R, *(made[source] for source in sources), leaves))
            return made

        def forward(leaves):
            return values(leaves)[c.at]

        made = values(leaves)
        value = R.value(made[c.at])
        pairs = [(out[self.y], value)]
        for tensor, index, function in c.further:
            pairs.append((out[tensor], R.value(function(R, made[c.sources[index][0]], leaves))))
        errors = []
        for got, wanted in pairs:
            got, wanted = got.astype(np.float64), np.reshape(wanted, got.shape)
            with np.errstate(invalid="ignore"):
                apart = np.abs(got - wanted) / (1 + np.abs(wanted))
            errors.append(np.max(np.where(got == wanted, 0, apart)))
        if self.rounded is not None:
            # The nearest number of all, or one that is as near.
            numbers = float8_numbers(self.rounded.data_type)
            finite = numbers[~np.isnan(numbers)]
            nearest = np.abs(value[..., None] - finite).min(-1)
            apart = np.abs(numbers[out[self.rounded]] - value) - nearest
            errors.append(np.max(apart / (1 + np.abs(value))))
        got = {leaf: out[tensor].astype(np.float64) for leaf, tensor in c.gradients}
        gradients = R.gradients(forward, leaves, self.weight, got, c.rng)
        counts["graphs"] += 1
        counts[R.name] += 1
        counts["outputs"] += len(out)
        counts.update(kind.__name__ for kind in self.kinds)
        reads = Counter(source for sources in c.sources for source in sources)
        counts["results read twice or more"] += sum(times > 1 for times in reads.values())
        counts.update("8-bit inputs" for tensor in c.arrays if tensor.data_type in EIGHT_BITS)
        return max(errors), gradients
