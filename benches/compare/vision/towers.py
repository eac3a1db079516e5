"""Projector files of the size of real vision towers, with random weights in half precision: for timing, not for seeing.

    pip install gguf==0.19.0
    python towers.py FOLDER [NAME ...]      clip-l siglip qwen2vl qwen25vl

They fit language models of width 64 (testdata/models/). Of Qwen's 32 layers, 8.
"""
import sys
from pathlib import Path

import gguf
import numpy as np

N_TEXT = 64
TOWERS = {  # side, patch, width, feed-forward, layers, heads, epsilon
    "clip-l": (336, 14, 1024, 4096, 23, 16, 1e-5),
    "siglip": (512, 16, 768, 3072, 12, 12, 1e-6),
    "qwen2vl": (560, 14, 1280, 5120, 8, 16, 1e-6),
    "qwen25vl": (560, 14, 1280, 3420, 8, 16, 1e-6),
}
PROJECTOR = {"clip-l": "mlp", "siglip": "idefics3", "qwen2vl": "qwen2vl_merger", "qwen25vl": "qwen2.5vl_merger"}


def write(name, path):
    side, patch, n, n_ff, n_layers, heads, eps = TOWERS[name]
    qwen, later = name.startswith("qwen"), name == "qwen25vl"
    w = gguf.GGUFWriter(path, "clip")
    rng = np.random.default_rng(1)
    vision = "clip.vision."
    w.add_string("general.type", "mmproj")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_string("clip.projector_type", PROJECTOR[name])
    for key, value in dict(image_size=side, patch_size=patch, embedding_length=n, feed_forward_length=n_ff,
                           block_count=n_layers, projection_dim=N_TEXT).items():
        w.add_uint32(vision + key, value)
    w.add_uint32(vision + "attention.head_count", heads)
    w.add_float32(vision + "attention.layer_norm_epsilon", eps)
    w.add_array(vision + "image_mean", [0.5] * 3)
    w.add_array(vision + "image_std", [0.5] * 3)
    if name == "clip-l":
        w.add_bool("clip.has_llava_projector", True)
        w.add_array(vision + "feature_layer", [n_layers])
    if name == "siglip":
        w.add_bool("clip.use_gelu", True)
        w.add_uint32(vision + "projector.scale_factor", 4)
        w.add_uint32(vision + "preproc_image_size", side)
    if later:
        w.add_bool("clip.use_silu", True)
        w.add_uint32(vision + "n_wa_pattern", 8)

    def matrix(tensor, n_out, n_in, bias=True, kernel=()):
        values = (rng.standard_normal((n_out, n_in), dtype=np.float32) / np.sqrt(n_in)).astype(np.float16)
        w.add_tensor(tensor + ".weight", values.reshape(n_out, *kernel) if kernel else values)
        if bias:
            vector(tensor + ".bias", n_out)

    def vector(tensor, length, around=0.0):
        w.add_tensor(tensor, (around + 0.02 * rng.standard_normal(length)).astype(np.float32))

    def norm(tensor):
        vector(tensor + ".weight", n, 1.0)
        if not later:
            vector(tensor + ".bias", n)

    kernel = (3, patch, patch)
    matrix("v.patch_embd", n, 3 * patch * patch, name == "siglip", kernel)
    if qwen:
        values = rng.standard_normal((n, *kernel), dtype=np.float32) / np.sqrt(3 * patch * patch)
        w.add_tensor("v.patch_embd.weight.1", values.astype(np.float16))
    else:
        positions = (side // patch) ** 2 + (name == "clip-l")
        w.add_tensor("v.position_embd.weight", (0.02 * rng.standard_normal((positions, n))).astype(np.float32))
    if name == "clip-l":
        vector("v.class_embd", n)
        norm("v.pre_ln")
    else:
        norm("v.post_ln")
    for i in range(n_layers):
        block = f"v.blk.{i}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(block + part, n, n)
        for part in ("ffn_gate", "ffn_up") if later else ("ffn_up",):
            matrix(block + part, n_ff, n)
        matrix(block + "ffn_down", n, n_ff)
        norm(block + "ln1")
        norm(block + "ln2")
    if name == "siglip":
        matrix("mm.model.fc", N_TEXT, 16 * n, False)
    else:
        wide, hidden = (4 * n, 4 * n) if qwen else (n, 4 * n)
        matrix("mm.0", hidden, wide)
        matrix("mm.2", N_TEXT, hidden)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    for tower in names or TOWERS:
        write(tower, str(Path(folder) / f"{tower}-f16.gguf"))
