"""A trained model as an ONNX graph: resizing, network, calibrated probabilities, and a description as metadata.

Knows nothing of run folders; it is given a predictor.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from selftrain.errors import UserError
from selftrain.export.description import CROPS, Crops, Description
from selftrain.export.graph import OPSET, Graph, Value
from selftrain.export.network import Network
from selftrain.export.resample import GREY, centre_crop
from selftrain.files import replacing
from selftrain.text import first_line

IR_VERSION = 10  # read by onnxruntime 1.18 and newer
MOST_BYTES = 2**31 - 2**20
"""a protobuf file holds no more"""
INNER = "network_input"


def network_graph(network: Network, example: torch.Tensor, novelty: bool) -> onnx.ModelProto:
    """Return the network as an ONNX model with the inputs and outputs of ``Network``."""
    names = ["probabilities", "novelty"][: 1 + novelty]
    batch = torch.export.Dim("batch", min=1, max=4096)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks of the exporter on its own internals
            program: Any = torch.onnx.export(
                network, (example,), dynamo=True, opset_version=OPSET, dynamic_shapes=({0: batch},),
                input_names=[INNER], output_names=names, optimize=False, verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises whatever an operation without a translation raises
        raise UserError(f"this network cannot be exported to ONNX ({first_line(error)}).") from error
    model: onnx.ModelProto = program.model_proto
    _fix_bounds(model.graph)
    return model


def _fix_bounds(graph: onnx.GraphProto) -> None:
    """Make the bounds of every Clip constants of float32; as they are written, runtimes do not fuse it with a Conv."""
    made = {node.output[0]: node for node in graph.node}
    stored = {one.name: one for one in graph.initializer}

    def constant(name: str) -> np.ndarray | None:
        if name in stored:
            return numpy_helper.to_array(stored[name])
        node = made.get(name)
        if node is None or node.op_type not in ("Constant", "Cast", "CastLike"):
            return None
        if node.op_type != "Constant":
            return constant(node.input[0])
        (value,) = node.attribute
        return (
            numpy_helper.to_array(value.t) if value.name == "value" else np.asarray(helper.get_attribute_value(value))
        )

    for node in list(graph.node):
        for place, name in enumerate(node.input if node.op_type == "Clip" else ()):
            cast = made.get(name)
            if place and cast is not None and cast.op_type == "CastLike" and (value := constant(name)) is not None:
                bound = f"{node.name}_bound_{place}"
                graph.initializer.append(numpy_helper.from_array(value.astype(np.float32).reshape(()), bound))
                node.input[place] = bound
    for kind in ("CastLike", "Constant"):  # bounds that nothing needs any more
        used = {name for node in graph.node for name in node.input}
        for node in [one for one in graph.node if one.op_type == kind and one.output[0] not in used]:
            graph.node.remove(node)


def with_resizing(network: onnx.ModelProto, crops: Crops) -> onnx.ModelProto:
    """Return the network with everything in front of it that turns uint8 images (N, H, W, 3) into its crops.

    Crops that are fed take the place of the images: a client that has Pillow resizes faster than the graph.
    """
    graph = Graph("image_")
    given = graph.value(CROPS)
    given_any = graph.op("Gather", graph.op("Shape", given), graph.constant(0, np.int64))
    yes, no = graph.inner(), graph.inner()
    resized = graph.branch(
        graph.op("Greater", given_any, graph.constant(0, np.int64)),
        (yes, yes.op("Identity", given)), (no, _crops_of(no, no.value("images"), crops)), np.uint8, axes=5,
    )  # fmt: skip
    graph.nodes.append(helper.make_node("Identity", [str(resized)], [INNER], "image_crops"))
    shape = (len(crops.shares), crops.channels, crops.size, crops.size)
    inputs = [
        helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", "height", "width", 3]),
        helper.make_tensor_value_info(CROPS, TensorProto.UINT8, ["batch_of_crops", *shape]),
    ]
    nothing = numpy_helper.from_array(np.zeros((0, *shape), np.uint8), CROPS)
    inner = network.graph
    whole = helper.make_graph(
        [*graph.nodes, *inner.node], "selftrain", inputs, list(inner.output),
        [nothing, *graph.constants, *inner.initializer],
    )  # fmt: skip
    return helper.make_model(whole, opset_imports=list(network.opset_import), functions=list(network.functions))


def _crops_of(graph: Graph, images: Value, crops: Crops) -> Value:
    """Return the crops (N, views, C, side, side) of images (N, H, W, 3)."""
    pixels = _grey(graph, images) if crops.channels == 1 else images
    axis = graph.constant([1], np.int64)
    views = [centre_crop(graph, pixels, crops.size, crops.interpolation, share) for share in crops.shares]
    return graph.op("Concat", *(graph.op("Unsqueeze", view, axis) for view in views), axis=1).cast(np.uint8)


def _grey(graph: Graph, images: Value) -> Value:
    """Return RGB images as grey ones, as Pillow computes them."""
    total = graph.op("Mul", images.cast(np.int32), graph.constant(GREY, np.int32))
    total = graph.op("ReduceSum", total, graph.constant([3], np.int64), keepdims=1)
    total = graph.op("Add", total, graph.constant(1 << 15, np.int32))
    return graph.op("Div", total, graph.constant(1 << 16, np.int32)).cast(np.uint8)


def write_onnx(path: Path, model: onnx.ModelProto, description: Description) -> None:
    """Write a model with its description, in one file without external data."""
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "selftrain", description.selftrain
    model.doc_string = "An image classifier. Its classes are in the metadata."
    helper.set_model_props(model, description.metadata())
    size = model.ByteSize()
    if size > MOST_BYTES:
        raise UserError(f"{path}: the model has {size / 2**30:.1f} GiB, and an ONNX file holds no more than 2 GiB.")
    onnx.checker.check_model(model)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
