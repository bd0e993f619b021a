"""Matrices of codes with a scale per block: MatMulNBits and GatherBlockQuantized of com.microsoft."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..block_rows import BlockRows, unpacked
from . import moves
from .linears import linear
from .values import Form, Function

WIDTHS = (2, 4, 8)
LARGEST_BLOCK = 2**16


def _matmul_n_bits(reader, node: ir.Node, arguments: list):
    """x times the transpose of a matrix [N, K]; codes uint8 [N, blocks, bytes], scales and zero points [N · blocks]."""
    x, packed, scales, zeros, order, bias = [*arguments, *[None] * 6][:6]
    constants = [a for a in (packed, scales, zeros, order, bias) if a is not None]
    if not isinstance(x, (Form, Function)) or len(constants) < 2 or not all(isinstance(a, np.ndarray) for a in constants):
        raise reader.unknown(node, arguments)
    n, k, size = (node.attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
    width = node.attributes.get_int("bits", 4)
    blocks = _check(reader, n, k, size, width, packed)
    if order is not None and not np.array_equal(np.ravel(order)[:k], np.arange(k) // size):
        raise reader.writer.refuse("columns in another order than their blocks (g_idx)", "columns in order; export without act_order")
    rows = _rows(reader, packed.reshape(n, -1), scales, zeros, width, size, k, blocks)
    return linear(reader, node, x, rows, node.inputs[1], bias)


def _gather_block_quantized(reader, node: ir.Node, arguments: list):
    """Rows of a table [rows, K] for the token ids; codes as in a MatMulNBits, or one in each element of a 4-bit type."""
    table, ids, scales, zeros = [*arguments, None][:4]
    if not all(isinstance(a, np.ndarray) for a in (table, scales)) or not (zeros is None or isinstance(zeros, np.ndarray)) or table.ndim != 2:
        raise reader.unknown(node, arguments)
    attributes = node.attributes
    axes = attributes.get_int("gather_axis", 0), attributes.get_int("quantize_axis", 1) % 2
    if axes != (0, 1) or table.dtype != np.uint8 or node.inputs[0].dtype not in (None, ir.DataType.UINT8):
        raise reader.writer.refuse(f"codes {table.dtype} by axes {axes[0]} and {axes[1]}", "uint8, gather_axis 0, quantize_axis 1")
    width, size = attributes.get_int("bits", 4), attributes.get_int("block_size", 128)
    k = table.shape[1] * 8 // max(1, width)
    blocks = _check(reader, len(table), k, size, width, table)
    rows = _rows(reader, table, scales, zeros, width, size, k, blocks)
    return moves.embed(reader, node, rows, ids)


def _check(reader, n: int, k: int, size: int, width: int, packed: np.ndarray) -> int:
    """The blocks of a row, where the numbers of a node and its codes agree."""
    refuse = reader.writer.refuse
    if width not in WIDTHS or not 16 <= size <= LARGEST_BLOCK or size & (size - 1):
        raise refuse(f"codes of {width} bits in blocks of {size}", f"{', '.join(map(str, WIDTHS))} bits, blocks of 16 and more, a power of two")
    blocks = -(-k // size)
    stored = packed.size * 8 // width
    if min(n, k) < 1 or packed.dtype != np.uint8 or stored not in (n * blocks * size, n * k):
        raise refuse(f"{stored} codes ({packed.dtype}) for {n} rows of {k} columns in blocks of {size}", f"{n * blocks * size} codes, uint8")
    return blocks


def _rows(
    reader, packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, width: int, size: int, columns: int, blocks: int
) -> BlockRows:
    n, refuse = len(packed), reader.writer.refuse
    if scales.dtype.kind != "f" or scales.size != n * blocks:
        raise refuse(f"{scales.size} scales ({scales.dtype})", f"{n * blocks} floats, one per block")
    if zeros is not None and zeros.dtype == np.uint8:
        # Packed by row, the last byte filled up.
        if zeros.size != n * -(-blocks * width // 8):
            raise refuse(f"zero points in {zeros.size} bytes", f"{n * -(-blocks * width // 8)}, {width} bits per block")
        zeros = zeros.reshape(n, -1) if width == 8 else unpacked(zeros.reshape(n, -1), width)[:, :blocks]
    elif zeros is not None:
        if zeros.dtype.kind != "f" or zeros.size != n * blocks:
            raise refuse(f"{zeros.size} zero points ({zeros.dtype})", f"{n * blocks}, uint8 or floats")
        zeros = zeros.reshape(n, blocks)
    whole = -(-blocks * size * width // 8)
    if packed.shape[1] < whole:  # a table without the rest of its last block
        packed = np.pad(packed, ((0, 0), (0, whole - packed.shape[1])))
    return BlockRows(packed, scales.reshape(n, blocks), zeros, width, size, columns)


OPERATORS = {"GatherBlockQuantized": _gather_block_quantized, "MatMulNBits": _matmul_n_bits}
EXACT = {"MatMulNBits": {"accuracy_level": 1}}  # attributes with which ONNX Runtime does not round the operands of a product
