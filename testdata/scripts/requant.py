"""A model in other block formats, quantised again by llama.cpp: worse than a direct quantisation, good for comparisons.

    pip install llama-cpp-python==0.3.36
    python requant.py IN.gguf FOLDER [TYPE ...]        all of TYPES without; writes FOLDER/IN.TYPE.gguf
"""
import ctypes
import sys
from pathlib import Path

from llama_cpp import llama_cpp as L

# llama.cpp's numbers of file types.
TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q5_K_M": 17, "Q6_K": 18,
         "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}

if __name__ == "__main__":
    source, folder, *names = sys.argv[1:]
    L.llama_backend_init()
    for name in names or TYPES:
        p = L.llama_model_quantize_default_params()
        p.ftype, p.allow_requantize = TYPES[name], True
        to = Path(folder) / f"{Path(source).stem}.{name}.gguf"
        if L.llama_model_quantize(source.encode(), str(to).encode(), ctypes.byref(p)) != 0:
            raise SystemExit(f"{to} could not be written")
        print(to)
