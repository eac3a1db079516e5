"""Reads a prompt and generates with OpenVINO GenAI; prints one JSON object per depth.

usage: run_openvino.py FILE.gguf THREADS N_GENERATE PROMPT,... [EVICT_TO]

A prompt of N tokens gives the reading speed at N and the generation speed at depth N. With EVICT_TO the cache is cut to
that many entries after the prompt, in blocks of 32, as this engine does it.
"""

import json
import os
import sys

os.environ.setdefault("OPENVINO_TELEMETRY_OPT_OUT", "1")
import openvino_genai as ov


def main():
    file, threads, n_generate, prompts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")
    evict_to = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    pipe = ov.LLMPipeline(file, "CPU", scheduler_config=scheduler(evict_to), INFERENCE_NUM_THREADS=threads)
    config = ov.GenerationConfig()
    config.max_new_tokens = n_generate
    config.min_new_tokens = n_generate
    config.ignore_eos = True
    config.apply_chat_template = False
    pipe.generate([text(16)], config)  # warms up
    for n in map(int, prompts):
        metrics = pipe.generate([text(n)], config).perf_metrics
        n_read = metrics.get_num_input_tokens()
        print(json.dumps({
            "n": n_read,
            "prompt": n_read / (metrics.get_ttft().mean / 1000),
            "generate": 1000 / metrics.get_tpot().mean,
        }), flush=True)


def text(n):
    return "the" + " the" * (n - 1)


def scheduler(evict_to):
    config = ov.SchedulerConfig()
    config.cache_size = 1
    # Whole prompts, as the other engines read them.
    config.max_num_batched_tokens = 16384
    config.enable_prefix_caching = False
    if evict_to:
        config.use_cache_eviction = True
        config.cache_eviction_config = ov.CacheEvictionConfig(
            start_size=32, recent_size=64, max_cache_size=evict_to, aggregation_mode=ov.AggregationMode.NORM_SUM)
    return config


main()
