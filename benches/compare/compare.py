"""Runs ecokv, llama.cpp and OpenVINO GenAI alternately on one file and prints a table of ratios. run.sh calls it.

Every round measures every figure with every engine, one process each, one after the other. A ratio is taken inside a
round, and the table has the median over the rounds with the smallest and the largest. llama.cpp counts with the better
of flash attention on and off, figure by figure and round by round. Next to every decode step, memory as large as the
model and the cache is read, which is what a step that did nothing else would take.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENV = os.environ

# A setting of llama.cpp that is so far behind the other after the first round is left out of the next ones.
HOPELESS = 0.8

# OpenVINO keeps whole blocks of 32 and wants more of them than the first and the last that it always keeps.
OPENVINO_KEEPS = 224

# Bytes of ecokv's cache, by figure.
KV_BYTES = {}


def main():
    args = arguments()
    figures = all_figures(args)
    samples = {}  # (figure, engine) -> tokens/s of each round, None where it could not be measured
    dropped = set()
    for round_ in range(args.rounds):
        for figure in figures:
            for engine, measure in engines(figure, args):
                if (figure, engine) in dropped:
                    rate = None
                else:
                    rate = measure()
                samples.setdefault((figure, engine), []).append(rate)
                if rate is None and engine != "ecokv":
                    dropped.add((figure, engine))
                shown = f"{rate:.1f} tokens/s" if rate else "-"
                print(f"round {round_ + 1}: {name(figure)}, {engine}: {shown}", file=sys.stderr, flush=True)
            if round_ == 0:
                dropped |= hopeless(figure, samples)
    raw = [{"figure": name(f), "engine": e, "tokens_per_s": rates} for (f, e), rates in samples.items()]
    args.raw.write_text(json.dumps({"file": str(args.file), "threads": args.threads, "samples": raw}, indent=1))
    print(heading(args))
    print(table(figures, samples))


def arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description="ecokv against llama.cpp and OpenVINO GenAI")
    parser.add_argument("file", type=Path, help="language model (GGUF)")
    parser.add_argument("--tiers", default="native", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", default="512,2048,7000", help="prompt lengths; all but the first are depths too")
    parser.add_argument("--generate", type=int, default=64, help="tokens generated at a depth")
    parser.add_argument("--budget", type=int, default=128, help="entries per head that ECOKV keeps")
    parser.add_argument("--only", default="", help="figures whose name contains this")
    parser.add_argument("--prefix", default="", help="put before every command, such as 'chrt -f 10'")
    parser.add_argument("--raw", type=Path, default=HERE / "installed/samples.json", help="where the samples go")
    return parser.parse_args()


def all_figures(args):
    """(kind, tokens, depth, budget or 0, tier)"""
    prompts = [int(p) for p in args.prompts.split(",")]
    figures = []
    for tier in args.tiers.split(","):
        figures += [("pp", n, 0, 0, tier) for n in prompts]
        figures += [("tg", args.generate, depth, 0, tier) for depth in [0] + prompts[1:]]
        figures += [("tg", args.generate, prompts[-1], args.budget, tier)]
    return [f for f in figures if args.only in name(f)]


def name(figure):
    kind, n, depth, budget, tier = figure
    if kind == "pp":
        return f"prefill {n}, {tier}"
    return f"decode after {depth}, ECOKV {budget}, {tier}" if budget else f"decode at {depth}, {tier}"


def engines(figure, args):
    """What measures a figure, by name. Without eviction of its own, llama.cpp decodes with the full cache."""
    tier = figure[4]
    found = [("ecokv", lambda: ecokv(figure, args))]
    llama = ENV[f"LLAMA_BENCH_{tier.upper()}"]
    found += [(f"llama.cpp, FA {fa}", lambda fa=fa: llama_bench(llama, figure, fa, args)) for fa in ("off", "on")]
    if tier == "native":
        found.append(("OpenVINO", lambda: openvino(figure, args)))
    if figure[0] == "tg":
        found.insert(1, ("memory", lambda: memory(figure, args)))
    return found


def ecokv(figure, args):
    kind, n, depth, budget, tier = figure
    command = [ENV["ECOKV"], "bench", "-m", args.file, "-t", args.threads, "-d", depth, "-r", 1, "--json"]
    command += ["-p", n, "-n", 0] if kind == "pp" else ["-p", 0, "-n", n]
    command += ["--method", "ecokv", "--budget", budget] if budget else []
    command += ["--dispatch", tier] if tier != "native" else []
    result = run(command, args)["results"][0]
    KV_BYTES[figure] = result["kv_bytes"]
    return result["tokens_per_s"]


def memory(figure, args):
    """Steps per second if a step did nothing but read the model and the cache of ecokv."""
    n_bytes = args.file.stat().st_size + KV_BYTES[figure]
    return 1 / run([ENV["READ_MEMORY"], n_bytes, args.threads], args)["seconds"]


def llama_bench(program, figure, fa, args):
    kind, n, depth, _, _ = figure
    command = [program, "-m", args.file, "-t", args.threads, "-d", depth, "-r", 1, "-fa", int(fa == "on"), "-o", "json"]
    command += ["-p", n, "-n", 0] if kind == "pp" else ["-p", 0, "-n", n]
    return run(command, args)[0]["avg_ts"]


def openvino(figure, args):
    kind, n, depth, budget, _ = figure
    prompt, generate = (n, 2) if kind == "pp" else (max(depth, 8), n)
    command = [ENV["OPENVINO_PYTHON"], HERE / "run_openvino.py", args.file, args.threads, generate, prompt]
    command += [OPENVINO_KEEPS] if budget else []
    result = run(command, args, may_fail=True)
    return result and result["prompt" if kind == "pp" else "generate"]


def run(command, args, may_fail=False):
    command = shlex.split(args.prefix) + [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)
    said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    message = f"{shlex.join(command)}: {said[0]}"
    if not may_fail:
        sys.exit(message)
    print(message, file=sys.stderr)
    return None


def hopeless(figure, samples):
    llama = {e: rates[0] for (f, e), rates in samples.items() if f == figure and "llama" in e and rates[0]}
    return {(figure, e) for e, rate in llama.items() if rate < HOPELESS * max(llama.values())}


def table(figures, samples):
    lines = ["| figure | ecokv | llama.cpp | OpenVINO | ecokv / llama.cpp | ecokv / the better | time / reading once |"]
    lines.append("|---|---|---|---|---|---|---|")
    for figure in figures:
        of = {e: rates for (f, e), rates in samples.items() if f == figure}
        ours, limit = of.pop("ecokv"), of.pop("memory", [])
        llama = [rates for engine, rates in of.items() if "llama" in engine]
        best_llama, best = per_round_best(llama), per_round_best(of.values())
        cells = [name(figure), rate(ours), rate(best_llama), rate(of.get("OpenVINO", [None]))]
        cells += [ratio(ours, best_llama), ratio(ours, best), ratio(limit, ours)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def per_round_best(series):
    return [max((r for r in rates if r), default=None) for rates in zip(*series)]


def rate(rates):
    known = [r for r in rates if r]
    return f"{statistics.median(known):.1f}" if known else "-"


def ratio(ours, theirs):
    ratios = [a / b for a, b in zip(ours, theirs) if a and b]
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def heading(args):
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "unknown")
    flags = next((l.split(":")[1].split() for l in open("/proc/cpuinfo") if l.startswith("flags")), [])
    sets = [f for f in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8") if f in flags]
    return (f"{args.file.name}, {args.threads} threads of {os.cpu_count()}, medians of {args.rounds} rounds, tokens/s; "
            f"{cpu} ({' '.join(sets)})\n")


main()
