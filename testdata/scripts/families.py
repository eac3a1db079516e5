"""Tiny random language models of several families with transformers: a GGUF file and recorded float32 results for each.

    pip install torch==2.9.1 transformers==4.57.6 gguf==0.19.0 safetensors
    python families.py [name ...]        names: qwen3 gemma3 llama-linear llama-yarn llama-llama3

Everything is deterministic. Keys and values are recorded as transformers holds them (channels in halves).
"""
import math
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as tf
from safetensors.numpy import save_file

MODELS = Path(__file__).resolve().parent.parent / "models"
VOCAB, PROMPT, STEPS = 288, 40, 8
torch.set_num_threads(1)


def reinit(model, seed, unit_norms):
    """Weights under which activations keep their size, attention is peaked, and norms and biases are not trivial."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters(), key=lambda kv: kv[0]):
            noise = torch.randn(p.shape, generator=g)
            if "norm" in name:
                p.copy_((1.0 if unit_norms else 0.0) + 0.25 * noise)
            elif p.ndim == 1:
                p.copy_(0.1 * noise)
            elif "embed" in name:
                p.copy_(0.7 * noise)
            else:
                gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
                p.copy_(gain / math.sqrt(p.shape[1]) * noise)
    return model.eval()


def interleave(w, n_heads):
    """Rows of each head from halves to pairs: how files of the llama architecture hold queries and keys."""
    return w.reshape(n_heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
# Gemma calls "post_attention_layernorm" what follows attention; elsewhere it precedes the feed-forward layer.
POST = {
    "gemma3": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"},
}


def write(path, arch, model, cfg, extra):
    w = gguf.GGUFWriter(str(path), arch)
    w.add_name("tiny " + path.parent.name)
    w.add_context_length(cfg.max_position_embeddings)
    w.add_embedding_length(cfg.hidden_size)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.num_attention_heads)
    w.add_head_count_kv(cfg.num_key_value_heads)
    w.add_key_length(cfg.head_dim)
    w.add_value_length(cfg.head_dim)
    w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    w.add_rope_freq_base(cfg.rope_theta)
    extra(w)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokens += [f"[PAD{i}]" for i in range(VOCAB - len(tokens))]
    w.add_token_list(tokens)
    w.add_token_types([2, 3, 3] + [6] * 256 + [5] * (VOCAB - 259))
    w.add_token_scores([0.0] * VOCAB)
    sd = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    one = 1.0 if arch == "gemma3" else 0.0  # the converter adds it to every norm
    names = LAYER | POST.get(arch, {"post_attention_layernorm": "ffn_norm"})
    w.add_tensor("token_embd.weight", sd["model.embed_tokens.weight"])
    w.add_tensor("output_norm.weight", sd["model.norm.weight"] + one)
    if not cfg.tie_word_embeddings:
        w.add_tensor("output.weight", sd["lm_head.weight"])
    heads = {"attn_q": cfg.num_attention_heads, "attn_k": cfg.num_key_value_heads}
    for i in range(cfg.num_hidden_layers):
        for source, name in names.items():
            a = sd.get(f"model.layers.{i}.{source}.weight")
            if a is None:
                continue
            if arch == "llama" and name in heads:
                a = interleave(a, heads[name])
            w.add_tensor(f"blk.{i}.{name}.weight", np.ascontiguousarray(a + one if a.ndim == 1 else a))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@torch.no_grad()
def record(path, model, cfg):
    ids = torch.randint(3, VOCAB, (1, PROMPT), generator=torch.Generator().manual_seed(5))
    t = {"input_ids": ids[0]}
    full = model(input_ids=ids, use_cache=False)
    t["logits"] = full.logits[0]
    past = tf.DynamicCache()
    out = model(input_ids=ids, use_cache=True, past_key_values=past)
    for i, layer in enumerate(past.layers):
        t[f"k.{i}"], t[f"v.{i}"] = layer.keys[0], layer.values[0]
    seq = ids
    for _ in range(STEPS):
        logits = model(input_ids=seq, use_cache=False).logits[0, -1]
        seq = torch.cat([seq, logits.argmax()[None, None]], 1)
    t["gen_ids"] = seq[0, PROMPT:]
    t["gen_logits"] = model(input_ids=seq, use_cache=False).logits[0, PROMPT:]
    # Two rows of three of the prompt are hidden from what follows it, in every layer and head.
    mask = torch.zeros(PROMPT + STEPS, PROMPT + STEPS, dtype=torch.bool).logical_not().tril()
    hidden = torch.arange(PROMPT) % 3 != 0
    mask[PROMPT:, :PROMPT] &= ~hidden
    masks = {"full_attention": mask, "sliding_attention": mask}
    if arch_window := getattr(cfg, "sliding_window", None):
        masks["sliding_attention"] = mask.logical_and(torch.ones_like(mask).triu(1 - arch_window))
    bias = {k: torch.zeros(m.shape).masked_fill(~m, torch.finfo(torch.float32).min)[None, None] for k, m in masks.items()}
    given = bias if cfg.model_type == "gemma3_text" or cfg.model_type == "qwen3" else bias["full_attention"]
    t["hidden"] = hidden
    t["hidden_logits"] = model(input_ids=seq, attention_mask=given, use_cache=False).logits[0, PROMPT:]
    convert = lambda v: v.numpy().astype(np.int32 if v.dtype == torch.int64 else np.uint8 if v.dtype == torch.bool else np.float32)
    save_file({k: np.ascontiguousarray(convert(v)) for k, v in t.items()}, str(path))


def sizes(**kw):
    common = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, rms_norm_eps=1e-6, rope_theta=10000.0,
                  tie_word_embeddings=False, attn_implementation="eager")
    return common | kw


def qwen3():
    cfg = tf.Qwen3Config(**sizes(head_dim=24, rope_theta=1e6))
    return "qwen3", tf.Qwen3ForCausalLM(cfg), cfg, 101, lambda w: None


def gemma3():
    cfg = tf.Gemma3TextConfig(**sizes(
        head_dim=24, num_hidden_layers=7, num_attention_heads=2, num_key_value_heads=1, query_pre_attn_scalar=24,
        rope_theta=1e6, rope_local_base_freq=10000.0, sliding_window=6, tie_word_embeddings=True,
        rope_scaling={"rope_type": "linear", "factor": 8.0}))

    def extra(w):
        w.add_sliding_window(6)
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(8.0)
    return "gemma3", tf.Gemma3ForCausalLM(cfg), cfg, 102, extra


def llama(scaling, extra):
    cfg = tf.LlamaConfig(**sizes(rope_scaling=scaling))
    return "llama", tf.LlamaForCausalLM(cfg), cfg, 103, extra


def llama_linear():
    def extra(w):
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(4.0)
    return llama({"rope_type": "linear", "factor": 4.0}, extra)


def llama_yarn():
    def extra(w):
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(4.0)
        w.add_rope_scaling_orig_ctx_len(256)
    return llama({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, extra)


def llama_llama3():
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 256}
    arch, model, cfg, seed, _ = llama(scaling, None)
    plain = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes()))
    # Files hold what each frequency is divided by.
    divisors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq
    return arch, model, cfg, seed, lambda w: w.add_tensor("rope_freqs.weight", divisors.numpy())


if __name__ == "__main__":
    every = {"qwen3": qwen3, "gemma3": gemma3, "llama-linear": llama_linear, "llama-yarn": llama_yarn,
             "llama-llama3": llama_llama3}
    for name in sys.argv[1:] or every:
        arch, model, cfg, seed, extra = every[name]()
        folder = MODELS / name
        folder.mkdir(exist_ok=True)
        reinit(model, seed, unit_norms=arch != "gemma3")
        write(folder / "model-f32.gguf", arch, model, cfg, extra)
        record(folder / "golden.safetensors", model, cfg)
        print(name, {p.name: p.stat().st_size for p in folder.iterdir()})
