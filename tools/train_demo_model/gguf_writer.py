# SPDX-License-Identifier: MIT
"""A minimal writer of GGUF version 3, little-endian.

File: magic "GGUF", u32 version, u64 tensor count, u64 key count; the keys (string name, u32 type,
value); the tensor infos (string name, u32 dimensions, u64 sizes with the contiguous one first, u32
type, u64 offset into the data); zeros up to a multiple of 32; the tensors, each starting at a
multiple of 32. A string is a u64 byte count and UTF-8 bytes; an array is u32 type, u64 count, values.

Q5_0: a row is cut into blocks of 32 values; a block is d = m / -16 as f16, m being the value furthest
from zero with its sign, then 32 numbers q = x / d + 16, rounded and at most 31: their fifth bits as u32
(bit i belongs to value i), then the lower four bits, value i in the lower and value i + 16 in the upper
half of byte i. 22 bytes in all; x is about d (q - 16).
"""
import struct

import numpy as np

ALIGNMENT = 32
F32, Q5_0 = 0, 6  # ggml's tensor types
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # GGUF's value types
Q5_0_BLOCK = np.dtype([("d", "<f2"), ("high", "<u4"), ("low", "u1", 16)])
SCALARS = {U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}


def string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def value(kind, item):
    return string(item) if kind == STRING else struct.pack(SCALARS[kind], item)


def quantize_q5_0(rows):
    """rows: float32, its last dimension a multiple of 32. Returns bytes."""
    if rows.shape[-1] % 32:
        raise ValueError(f"a row of {rows.shape[-1]} values is no multiple of 32")
    blocks = rows.reshape(-1, 32).astype(np.float32)
    furthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = furthest / np.float32(-16)
    inverse = np.where(scale != 0, 1 / np.where(scale != 0, scale, 1), 0).astype(np.float32)
    q = np.clip(np.floor(blocks * inverse + np.float32(16.5)), 0, 31).astype(np.uint32)
    out = np.zeros(len(blocks), dtype=Q5_0_BLOCK)
    out["d"] = scale[:, 0]
    out["high"] = ((q >> 4) << np.arange(32, dtype=np.uint32)).sum(axis=1)
    out["low"] = (q[:, :16] & 15) | ((q[:, 16:] & 15) << 4)
    return out.tobytes()


def dequantize_q5_0(data, shape, offset=0):
    """data: bytes. Returns float32 of the given shape, whose last dimension is contiguous."""
    blocks = np.frombuffer(data, Q5_0_BLOCK, int(np.prod(shape)) // 32, offset)
    low = np.concatenate((blocks["low"] & 15, blocks["low"] >> 4), axis=1)
    high = (blocks["high"][:, None] >> np.arange(32, dtype=np.uint32)) & 1
    q = (low | (high << 4)).astype(np.float32) - 16
    return (blocks["d"].astype(np.float32)[:, None] * q).reshape(tuple(shape))


class Writer:
    def __init__(self):
        self.keys = []
        self.tensors = []

    def add(self, key, kind, item):
        self.keys.append(string(key) + struct.pack("<I", kind) + value(kind, item))

    def add_array(self, key, kind, items):
        head = struct.pack("<IIQ", ARRAY, kind, len(items))
        self.keys.append(string(key) + head + b"".join(value(kind, i) for i in items))

    def add_tensor(self, name, array, kind):
        array = np.ascontiguousarray(array, dtype=np.float32)
        data = quantize_q5_0(array) if kind == Q5_0 else array.astype("<f4").tobytes()
        self.tensors.append((name, array.shape[::-1], kind, data))

    def write(self, path):
        infos, data, offset = [], [], 0
        for name, shape, kind, raw in self.tensors:
            infos.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
            padded = raw + bytes(-len(raw) % ALIGNMENT)
            data.append(padded)
            offset += len(padded)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)) + b"".join(self.keys + infos)
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % ALIGNMENT))
            f.writelines(data)
