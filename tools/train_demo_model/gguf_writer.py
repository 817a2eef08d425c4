# SPDX-License-Identifier: MIT
"""A minimal writer of GGUF version 3, little-endian.

File: magic "GGUF", u32 version, u64 tensor count, u64 key count; the keys (string name, u32 type,
value); the tensor infos (string name, u32 dimensions, u64 sizes with the contiguous one first, u32
type, u64 offset into the data); zeros up to a multiple of 32; the tensors, each starting at a
multiple of 32. A string is a u64 byte count and UTF-8 bytes; an array is u32 type, u64 count, values.

Q8_0: a row is cut into blocks of 32 values; a block is d = max|x| / 127 as f16 and 32 times
round(x / d) as i8, 34 bytes in all.
"""
import struct

import numpy as np

ALIGNMENT = 32
F32, Q8_0 = 0, 8  # ggml's tensor types
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # GGUF's value types
Q8_0_BLOCK = np.dtype([("d", "<f2"), ("q", "i1", 32)])
SCALARS = {U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}


def string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def value(kind, item):
    return string(item) if kind == STRING else struct.pack(SCALARS[kind], item)


def quantize_q8_0(rows):
    """rows: float32, its last dimension a multiple of 32. Returns bytes."""
    if rows.shape[-1] % 32:
        raise ValueError(f"a row of {rows.shape[-1]} values is no multiple of 32")
    blocks = rows.reshape(-1, 32).astype(np.float32)
    scale = np.abs(blocks).max(axis=1) / np.float32(127)
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0).astype(np.float32)
    scaled = blocks * inverse[:, None]
    out = np.zeros(len(blocks), dtype=Q8_0_BLOCK)
    out["d"] = scale
    out["q"] = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)  # halves away from zero, as ggml does
    return out.tobytes()


def dequantize_q8_0(data, shape, offset=0):
    """data: bytes. Returns float32 of the given shape, whose last dimension is contiguous."""
    blocks = np.frombuffer(data, Q8_0_BLOCK, int(np.prod(shape)) // 32, offset)
    return (blocks["d"].astype(np.float32)[:, None] * blocks["q"]).reshape(tuple(shape))


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
        data = quantize_q8_0(array) if kind == Q8_0 else array.astype("<f4").tobytes()
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
