"""Agreement of ecokv with llama.cpp on a plain text: how often both expect the same next token, and both perplexities; and of
both with llama.cpp where it has the same weights in float32, which tells what its rounding of activations changes. With
`--other-build`, how often llama.cpp expects the same as llama.cpp compiled for another instruction set.

    pip install llama-cpp-python==0.3.36 numpy torch==2.9.1 transformers==4.57.6 accelerate==1.12.0 gguf==0.19.0
    cargo build --release --example next_tokens
    python agreement.py TEXT MODEL.gguf ... [--tokens 2000] [--top 256] [--next-tokens PATH] [--float-cache] [--help]

llama.cpp runs on one thread with its defaults but for flash attention, which is off: cache in half precision,
activations in 8 bits. On weights in float32 (a temporary file of dequant.py, 4 bytes a weight) it rounds no activations;
where ecokv still expects another token there, stderr has llama.cpp's gap between its two best logits. The second arbiter
is transformers with the same weights. All results but ecokv's are kept beside the model.
"""
import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

from dequant import dequantise


def by_llama_cpp(model, text, n_tokens):
    kept = model.with_suffix(f".llama-cpp-{n_tokens}.json")
    if not kept.exists():
        kept.write_text(json.dumps(run_llama_cpp(model, text, n_tokens)))
    return json.loads(kept.read_text())


def by_llama_cpp_in_float(model, text, n_tokens, float_cache):
    kept = model.with_suffix(f".llama-cpp-f32-{'cache-' if float_cache else ''}{n_tokens}.json")
    if not kept.exists():
        with tempfile.NamedTemporaryFile(dir=model.parent, suffix=".gguf") as f32:
            dequantise(model, f32.name)
            kept.write_text(json.dumps(run_llama_cpp(f32.name, text, n_tokens, float_cache)))
    return json.loads(kept.read_text())


def by_other_build(model, text, n_tokens, libraries):
    kept = model.with_suffix(f".llama-cpp-other-{n_tokens}.json")
    if not kept.exists():
        # A process of its own, which loads the other libraries.
        with mock.patch.dict(os.environ, LLAMA_CPP_LIB_PATH=str(libraries)):
            with multiprocessing.get_context("spawn").Pool(1) as other:
                kept.write_text(json.dumps(other.apply(run_llama_cpp, (str(model), text, n_tokens))))
    return json.loads(kept.read_text())


def run_llama_cpp(model, text, n_tokens, float_cache=False):
    from llama_cpp import llama_cpp as L
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, None)
    L.llama_backend_init()
    m = L.llama_model_load_from_file(str(model).encode(), L.llama_model_default_params())
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch, p.flash_attn_type = n_tokens + 8, 128, 128, 1, 1, 0
    if float_cache:
        p.type_k = p.type_v = L.GGML_TYPE_F32
    c = L.llama_init_from_model(m, p)
    vocab = L.llama_model_get_vocab(m)
    n_vocab = L.llama_vocab_n_tokens(vocab)
    raw = text.encode()
    buffer = (L.llama_token * (len(raw) + 16))()
    ids = list(buffer[:L.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), True, False)])[:n_tokens]
    top, nll, second, gap = [], [], [], []
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
                runner_up, best = (int(x) for x in np.argpartition(row, -2)[-2:])
                top.append(best)
                second.append(runner_up)
                gap.append(float(row[best] - row[runner_up]))
                nll.append(float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[ids[start + i + 1]]))
        L.llama_batch_free(batch)
    L.llama_free(c)
    L.llama_model_free(m)
    return {"ids": ids, "top": top, "nll": nll, "second": second, "gap": gap}


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


def perplexity(nll):
    return np.exp(np.mean(nll))


def report(name, tops, f32, whose):
    for i, (token, best) in enumerate(zip(tops, f32["top"])):
        if token != best:
            rank = "the second" if token == f32["second"][i] else "neither of the two best"
            print(f"{name}: position {i}: {whose} expects {rank}, gap {f32['gap'][i]:.4f}", file=sys.stderr)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("text", type=Path)
    a.add_argument("models", type=Path, nargs="+")
    a.add_argument("--tokens", type=int, default=2000)
    a.add_argument("--top", type=int, default=256)
    a.add_argument("--next-tokens", type=Path, default=Path("target/release/examples/next_tokens"))
    a.add_argument("--no-float", action="store_true", help="leave llama.cpp on float32 weights out")
    a.add_argument("--float-cache", action="store_true", help="llama.cpp's cache in float32 too where its weights are")
    a.add_argument("--no-transformers", action="store_true", help="leave transformers out")
    a.add_argument("--other-build", type=Path, help="folder with the libraries of another build of llama.cpp")
    a.add_argument("--precision", choices=["int8", "int16", "float"], default="int16", help="activations of ecokv")
    args = a.parse_args()
    text = args.text.read_text(errors="replace")
    print("| file | same most likely token as llama.cpp | as llama.cpp in float32 | llama.cpp as itself in float32 "
          "| as its other build | as transformers | llama.cpp as transformers | perplexity | llama.cpp's | ratio "
          "| ratio to float32 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for model in args.models:
        theirs = by_llama_cpp(model, text, args.tokens)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
            ids.write(" ".join(map(str, theirs["ids"])))
            ids.flush()
            lines = subprocess.run([args.next_tokens.resolve(), model, ids.name, args.precision], check=True, capture_output=True, text=True).stdout
        ours = [line.split() for line in lines.splitlines()]
        ours, nll = [int(o[0]) for o in ours], [float(o[1]) for o in ours]
        mine, other = perplexity(nll), perplexity(theirs["nll"])
        in_float, ratio_in_float = [], "-"
        if not args.no_float:
            f32 = by_llama_cpp_in_float(model, text, args.top + 1, args.float_cache)
            in_float, ratio_in_float = f32["top"], f"{perplexity(nll[:args.top]) / perplexity(f32['nll']):.4f}"
            report(model.name, ours, f32, "ecokv")
            report(model.name, theirs["top"], f32, "llama.cpp")
        other_build = by_other_build(model, text, args.tokens, args.other_build)["top"] if args.other_build else []
        exact = [] if args.no_transformers else by_transformers(model, theirs["ids"][:args.top])

        def same(a, b):
            pairs = list(zip(a, b))
            return f"{sum(x == y for x, y in pairs)} of {len(pairs)}" if pairs else "-"

        print(f"| {model.name} | {same(ours[:args.top], theirs['top'])}, {same(ours, theirs['top'])} | {same(ours, in_float)} "
              f"| {same(theirs['top'], in_float)} | {same(theirs['top'][:args.top], other_build)} | {same(ours, exact)} "
              f"| {same(theirs['top'], exact)} | {mine:.3f} | {other:.3f} | {mine / other:.4f} | {ratio_in_float} |", flush=True)


if __name__ == "__main__":
    main()
