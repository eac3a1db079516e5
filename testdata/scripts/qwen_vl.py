"""Several pictures in one prompt, and hidden rows, with transformers: `many.safetensors` beside the tiny Qwen2-VL and
Qwen2.5-VL models, whose weights are read back from their GGUF files.

    pip install torch==2.9.1 torchvision==0.24.1 transformers==4.57.6 gguf==0.19.0 pillow==11.3.0 safetensors regex
    python qwen_vl.py
"""
from pathlib import Path

import gguf
import numpy as np
import regex
import torch
import transformers as tf
from PIL import Image
from safetensors.numpy import save_file
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

MODELS = Path(__file__).resolve().parent.parent / "models"
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
IMAGE = "<__media__>"
PROMPT = (IMAGE + "<|im_start|>user\nThe first was a dot." + IMAGE + " Then" + IMAGE
          + "What is in the image?<|im_end|>\n<|im_start|>assistant\n")
STEPS = 8
torch.set_num_threads(1)


class Vocabulary:
    """Byte-level BPE as the file says, with Qwen2's way of cutting text."""
    PIECES = regex.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                           r"|\s*[\r\n]+|\s+(?!\S)|\s+")

    def __init__(self, file):
        read = lambda name: file.fields[f"tokenizer.ggml.{name}"].contents()
        self.ids = {t: i for i, t in enumerate(read("tokens"))}
        self.special = [t for t, kind in zip(read("tokens"), read("token_type")) if kind in (3, 4)]
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(read("merges"))}
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        extra = iter(range(256, 512))
        self.byte = {b: chr(b if b in plain else next(extra)) for b in range(256)}

    def encode(self, text):
        out = []
        cut = "(" + "|".join(map(regex.escape, sorted(self.special, key=len, reverse=True))) + ")"
        for part in regex.split(cut, text):
            if part in self.special:
                out.append(self.ids[part])
                continue
            for piece in self.PIECES.findall(part):
                symbols = [self.byte[b] for b in piece.encode()]
                while len(symbols) > 1:
                    pairs = list(zip(symbols, symbols[1:]))
                    best = min(range(len(pairs)), key=lambda i: self.ranks.get(pairs[i], 1 << 30))
                    if pairs[best] not in self.ranks:
                        break
                    symbols[best:best + 2] = [symbols[best] + symbols[best + 1]]
                out += [self.ids[s] for s in symbols]
        return out


def picture(w, h, seed):
    """Gradients, stripes, a disc and noise. [h, w, 3] bytes."""
    r = np.random.RandomState(seed)
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    image = np.stack([255 * x / (w - 1), 127 * (1 + np.sin(x / 3.1 + y / 5.7)), 255 * y / (h - 1)], -1)
    image[(x - w * 0.6) ** 2 + (y - h * 0.4) ** 2 < (min(w, h) * 0.25) ** 2] = [250, 40, 90]
    return np.clip(np.rint(image + r.randint(-20, 21, image.shape)), 0, 255).astype(np.uint8)


def build(folder, vocab, is_25):
    text = dict(vocab_size=len(vocab.ids), hidden_size=64, intermediate_size=160, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, rms_norm_eps=1e-6,
                rope_theta=1e6, hidden_act="silu", tie_word_embeddings=False, use_sliding_window=False,
                rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]})
    ids = dict(image_token_id=vocab.ids["<|image_pad|>"], video_token_id=vocab.ids["<|video_pad|>"],
               vision_start_token_id=vocab.ids["<|vision_start|>"], vision_end_token_id=vocab.ids["<|vision_end|>"])
    both = dict(num_heads=2, in_channels=3, patch_size=8, spatial_merge_size=2, temporal_patch_size=2)
    if is_25:
        vision = dict(depth=4, hidden_size=32, intermediate_size=56, window_size=112, out_hidden_size=64,
                      fullatt_block_indexes=[1, 3], hidden_act="silu", **both)
        cfg = tf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
        model = tf.Qwen2_5_VLForConditionalGeneration(cfg)
    else:
        vision = dict(depth=3, embed_dim=32, hidden_size=64, mlp_ratio=2, hidden_act="quick_gelu", **both)
        cfg = tf.Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
        model = tf.Qwen2VLForConditionalGeneration(cfg)
    model.set_attn_implementation("eager")
    tensors = {}
    for name in ("model-f32.gguf", "mmproj-f32.gguf"):
        for t in gguf.GGUFReader(folder / name).tensors:
            tensors[t.name] = torch.from_numpy(np.array(t.data, np.float32))
    state = {}
    for key, old in model.state_dict().items():
        state[key] = source(key, tensors).reshape(old.shape)
    model.load_state_dict(state)
    return model.eval()


LANGUAGE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
VISION = {"norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
          "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def source(key, tensors):
    """The tensor of the files for a parameter of transformers."""
    name, leaf = key.removeprefix("model.").rsplit(".", 1)
    fixed = {"lm_head": "output", "language_model.embed_tokens": "token_embd", "language_model.norm": "output_norm",
             "visual.merger.ln_q": "v.post_ln", "visual.merger.mlp.0": "mm.0", "visual.merger.mlp.2": "mm.2"}
    if name in fixed:
        return tensors[f"{fixed[name]}.{leaf}"]
    if name == "visual.patch_embed.proj":
        return torch.stack([tensors["v.patch_embd.weight"], tensors["v.patch_embd.weight.1"]], 2)
    kind, _, i, rest = name.split(".", 3)
    if rest == "attn.qkv":
        return torch.cat([tensors[f"v.blk.{i}.attn_{x}.{leaf}"] for x in "qkv"])
    if kind == "visual":
        return tensors[f"v.blk.{i}.{VISION[rest]}.{leaf}"]
    return tensors[f"blk.{i}.{LANGUAGE[rest]}.{leaf}"]


@torch.no_grad()
def record(folder, is_25):
    vocab = Vocabulary(gguf.GGUFReader(folder / "model-f32.gguf"))
    model = build(folder, vocab, is_25)
    # Sides of exactly two and a half blocks, and a picture that must be enlarged.
    sizes = [(20, 9), (130, 120), (64, 48)] if is_25 else [(20, 9), (88, 40), (64, 48)]
    pictures = [picture(w, h, seed) for seed, (w, h) in enumerate(sizes)]
    processor = tf.Qwen2VLImageProcessor(patch_size=8, merge_size=2, temporal_patch_size=2, min_pixels=4 * 256,
                                         max_pixels=1280 * 256, image_mean=MEAN, image_std=STD)
    batch = processor(images=[Image.fromarray(p) for p in pictures], return_tensors="pt")
    grids = batch["image_grid_thw"]
    counts = iter((grids.prod(-1) // 4).tolist())
    first, *rest = PROMPT.split(IMAGE)
    text = first
    for piece in rest:
        text += "<|vision_start|>" + "<|image_pad|>" * next(counts) + "<|vision_end|>" + piece
    ids = torch.tensor([vocab.encode(text)])
    n = ids.shape[1]
    positions, delta = model.model.get_rope_index(ids, image_grid_thw=grids)
    t = {"input_ids": ids[0], "position_ids": positions[:, 0], "image_embeds": model.model.visual(batch["pixel_values"], grid_thw=grids)}
    t |= {f"{i}.image": torch.from_numpy(p) for i, p in enumerate(pictures)}
    run = lambda: model(input_ids=ids, pixel_values=batch["pixel_values"], image_grid_thw=grids,
                        attention_mask=torch.ones_like(ids), use_cache=True)
    hidden = torch.arange(n) % 3 != 0
    for prefix, mask in (("gen", torch.ones(n)), ("hidden", (~hidden).float())):
        out = run()
        past, last, steps = out.past_key_values, out.logits[0, -1], []
        given = t.get("gen_ids")
        chosen = []
        for step in range(STEPS):
            token = int(last.argmax()) if given is None else int(given[step])
            chosen.append(token)
            at = n + step
            o = model(input_ids=torch.tensor([[token]]), past_key_values=past, use_cache=True,
                      attention_mask=torch.cat([mask, torch.ones(step + 1)])[None].long(),
                      position_ids=torch.full((3, 1, 1), at + int(delta)), cache_position=torch.tensor([at]))
            past, last = o.past_key_values, o.logits[0, -1]
            steps.append(last)
        t.setdefault("gen_ids", torch.tensor(chosen))
        t[f"{prefix}_logits"] = torch.stack(steps)
        t.setdefault("logits", out.logits[0])
    t["hidden"] = hidden
    r = np.random.RandomState(1)
    shapes = [tuple(int(x) for x in np.exp(r.uniform(0, 8.3, 2))) for _ in range(400)] + sizes
    shapes = [(w, h) for w, h in shapes if max(w, h) <= 200 * min(w, h)]
    t["resized"] = torch.tensor([(w, h, *smart_resize(h, w, 16, 1024, 1280 * 256)[::-1]) for w, h in shapes])
    types = {torch.int64: np.int32, torch.bool: np.uint8, torch.uint8: np.uint8}
    save_file({k: np.ascontiguousarray(v.numpy().astype(types.get(v.dtype, np.float32))) for k, v in t.items()},
              str(folder / "many.safetensors"))
    print(folder.name, n, "tokens", grids.tolist(), [smart_resize(h, w, 16, 1024, 1280 * 256) for w, h in sizes])


if __name__ == "__main__":
    record(MODELS / "qwen2vl", False)
    record(MODELS / "qwen25vl", True)
