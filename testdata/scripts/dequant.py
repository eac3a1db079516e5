"""The same model with its weights in float32: what they are worth exactly, and nothing else changed.

    pip install gguf==0.19.0
    python dequant.py IN.gguf OUT.gguf

llama.cpp rounds activations to the format that the weights want; for float32 weights it rounds none.
"""
import math
import struct
import sys
from pathlib import Path

import gguf
import numpy as np


def dequantise(source, to):
    reader = gguf.GGUFReader(source)
    tensors = reader.tensors
    with open(to, "wb") as out:
        # Header and metadata come before the first tensor's description: kept byte for byte.
        out.write(reader.data[:tensors[0].field.offset].tobytes())
        offset = 0
        for t in tensors:
            name, shape = t.name.encode(), t.shape.tolist()
            out.write(struct.pack(f"<Q{len(name)}sI{len(shape)}QIQ", len(name), name, len(shape), *shape,
                                  gguf.GGMLQuantizationType.F32, offset))
            offset = padded(offset + 4 * math.prod(shape), reader.alignment)
        for t in tensors:
            out.write(bytes(padded(out.tell(), reader.alignment) - out.tell()))
            gguf.dequantize(t.data, t.tensor_type).astype(np.float32, copy=False).tofile(out)


def padded(n, alignment):
    return (n + alignment - 1) // alignment * alignment


if __name__ == "__main__":
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
