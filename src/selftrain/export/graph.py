"""Write ONNX graphs as Python expressions: ``(x + 0.5).floor()`` adds nodes and returns the name of their result.

Knows nothing of images or models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET = 18


class Graph:
    """A list of nodes that grows. Names are unique within one prefix."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._count = 0
        self._kept: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def value(self, name: str) -> Value:
        """Return a value by its name: an input, or the result of a node outside."""
        return Value(self, name)

    def constant(self, value: Any, dtype: Any) -> Value:
        """Return a constant; equal ones are stored once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._kept:
            self._kept[key] = name = self._name("constant")
            self.constants.append(numpy_helper.from_array(array, name))
        return Value(self, self._kept[key])

    def op(self, kind: str, *inputs: Value | str, **attributes: Any) -> Value:
        """Add a node and return its result."""
        name = self._name(kind.lower())
        self.nodes.append(helper.make_node(kind, [str(one) for one in inputs], [name], name, **attributes))
        return Value(self, name)

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        """Return ``yes`` where the condition holds, else ``no``; both are computed."""
        return self.op("Where", condition, yes, no)

    def branch(
        self, condition: Value, yes: tuple[Graph, Value], no: tuple[Graph, Value], dtype: Any, axes: int = 4
    ) -> Value:
        """Return the result of one of two graphs, a tensor with so many axes; only that one is computed."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        then, otherwise = (
            helper.make_graph(
                graph.nodes, graph.prefix, [],
                [helper.make_tensor_value_info(str(result), kind, [f"{result}_{axis}" for axis in range(axes)])],
                graph.constants,
            )
            for graph, result in (yes, no)
        )  # fmt: skip
        return self.op("If", condition, then_branch=then, else_branch=otherwise)

    def inner(self) -> Graph:
        """Return a graph for a branch; it may use values of this one."""
        self._count += 1
        return Graph(f"{self.prefix}{self._count}_")

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self.prefix}{kind}_{self._count}"


class Value:
    """The name of a tensor in a graph, with arithmetic. Numbers take the type that the caller names in ``dtype``."""

    dtype: Any = np.float64
    """of the numbers in expressions: coordinates are computed in double precision"""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __str__(self) -> str:
        return self.name

    def _other(self, other: Any) -> Value:
        return other if isinstance(other, Value) else self.graph.constant(other, self.dtype)

    def __add__(self, other: Any) -> Value:
        return self.graph.op("Add", self, self._other(other))

    def __sub__(self, other: Any) -> Value:
        return self.graph.op("Sub", self, self._other(other))

    def __mul__(self, other: Any) -> Value:
        return self.graph.op("Mul", self, self._other(other))

    def __truediv__(self, other: Any) -> Value:
        return self.graph.op("Div", self, self._other(other))

    def __lt__(self, other: Any) -> Value:
        return self.graph.op("Less", self, self._other(other))

    def __gt__(self, other: Any) -> Value:
        return self.graph.op("Greater", self, self._other(other))

    def at_least(self, other: Any) -> Value:
        return self.graph.op("Max", self, self._other(other))

    def at_most(self, other: Any) -> Value:
        return self.graph.op("Min", self, self._other(other))

    def floor(self) -> Value:
        return self.graph.op("Floor", self)

    def ceil(self) -> Value:
        return self.graph.op("Ceil", self)

    def abs(self) -> Value:
        return self.graph.op("Abs", self)

    def cast(self, dtype: Any) -> Value:
        return self.graph.op("Cast", self, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def integer(self) -> Value:
        return self.cast(np.int64)

    def column(self) -> Value:
        """Return a vector (n,) as (n, 1)."""
        return self.graph.op("Unsqueeze", self, self.graph.constant([1], np.int64))

    def listed(self) -> Value:
        """Return a scalar as a vector of length 1."""
        return self.graph.op("Unsqueeze", self, self.graph.constant([0], np.int64))

    def sum(self, *axes: int) -> Value:
        return self.graph.op("ReduceSum", self, self.graph.constant(axes, np.int64), keepdims=0)
