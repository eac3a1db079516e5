"""Agreement of ecokv with llama.cpp on a plain text: how often both expect the same next token, and both perplexities.

    pip install llama-cpp-python==0.3.36 numpy torch==2.9.1 transformers==4.57.6 accelerate==1.12.0 gguf==0.19.0
    cargo build --release --example next_tokens
    python agreement.py TEXT MODEL.gguf ... [--tokens 2000] [--top 256] [--next-tokens PATH] [--no-float]

llama.cpp runs on one thread with its defaults but for flash attention, which is off: cache in half precision,
activations in 8 bits. The arbiter is transformers with the file's weights converted to float32. Results of both are kept
beside the model.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np


def by_llama_cpp(model, text, n_tokens):
    kept = model.with_suffix(f".llama-cpp-{n_tokens}.json")
    if kept.exists():
        return json.loads(kept.read_text())
    from llama_cpp import llama_cpp as L
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, None)
    L.llama_backend_init()
    m = L.llama_model_load_from_file(str(model).encode(), L.llama_model_default_params())
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch, p.flash_attn_type = n_tokens + 8, 128, 128, 1, 1, 0
    c = L.llama_init_from_model(m, p)
    vocab = L.llama_model_get_vocab(m)
    n_vocab = L.llama_vocab_n_tokens(vocab)
    raw = text.encode()
    buffer = (L.llama_token * (len(raw) + 16))()
    ids = list(buffer[:L.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), True, False)])[:n_tokens]
    top, nll = [], []
    for start in range(0, len(ids), 128):
        part = ids[start:start + 128]
        batch = L.llama_batch_init(len(part), 0, 1)
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 1
            batch.seq_id[i][0] = 0
        assert L.llama_decode(c, batch) == 0
        logits = np.ctypeslib.as_array(L.llama_get_logits(c), shape=(len(part) * n_vocab,)).reshape(-1, n_vocab)
        for i, row in enumerate(logits.astype(np.float64)):
            if start + i + 1 < len(ids):
                top.append(int(row.argmax()))
                nll.append(float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[ids[start + i + 1]]))
        L.llama_batch_free(batch)
    L.llama_free(c)
    L.llama_model_free(m)
    kept.write_text(json.dumps({"ids": ids, "top": top, "nll": nll}))
    return json.loads(kept.read_text())


def by_transformers(model, ids):
    kept = model.with_suffix(f".transformers-{len(ids)}.json")
    if not kept.exists():
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(2)
        m = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
        with torch.no_grad():
            top = m(torch.tensor([ids])).logits[0].argmax(-1).tolist()
        kept.write_text(json.dumps(top))
    return json.loads(kept.read_text())


def main():
    a = argparse.ArgumentParser()
    a.add_argument("text", type=Path)
    a.add_argument("models", type=Path, nargs="+")
    a.add_argument("--tokens", type=int, default=2000)
    a.add_argument("--top", type=int, default=256)
    a.add_argument("--next-tokens", type=Path, default=Path("target/release/examples/next_tokens"))
    a.add_argument("--no-float", action="store_true")
    a.add_argument("--precision", choices=["int8", "int16", "float"], default="int16", help="activations of ecokv")
    args = a.parse_args()
    text = args.text.read_text(errors="replace")
    print("| file | same most likely token as llama.cpp | as float32 | llama.cpp as float32 | perplexity | llama.cpp's | ratio |")
    print("|---|---|---|---|---|---|---|")
    for model in args.models:
        theirs = by_llama_cpp(model, text, args.tokens)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
            ids.write(" ".join(map(str, theirs["ids"])))
            ids.flush()
            lines = subprocess.run([args.next_tokens.resolve(), model, ids.name, args.precision], check=True, capture_output=True, text=True).stdout
        ours = [line.split() for line in lines.splitlines()]
        mine, other = (np.exp(np.mean(x)) for x in ([float(o[1]) for o in ours], theirs["nll"]))
        ours = [int(o[0]) for o in ours]
        exact = [] if args.no_float else by_transformers(model, theirs["ids"][:args.top])

        def same(a, b):
            pairs = list(zip(a, b))
            return f"{sum(x == y for x, y in pairs)} of {len(pairs)}" if pairs else "-"

        print(f"| {model.name} | {same(ours[:args.top], theirs['top'])}, {same(ours, theirs['top'])} | {same(ours, exact)} "
              f"| {same(theirs['top'], exact)} | {mine:.3f} | {other:.3f} | {mine / other:.4f} |", flush=True)


if __name__ == "__main__":
    main()
