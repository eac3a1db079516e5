// A host with a cache and an attention of its own, as llama.cpp, ncnn or MNN have: it fills plain float buffers during
// prefill, asks ecokv what to keep, compacts its buffers, and goes on with the shorter cache.
#include <cmath>
#include <cstdio>
#include <random>

#include "ecokv.hpp"

namespace {

constexpr std::uint32_t n_kv_heads = 2, group = 3, head_dim = 64, capacity = 600, window = 32;

// One layer: every head has `capacity` rows, of which `lens` are in use.
struct cache {
    std::vector<float> keys, values;
    std::vector<std::int32_t> positions;
    std::vector<std::uint32_t> starts, lens;

    cache() : keys(n_kv_heads * capacity * head_dim), values(keys.size()), positions(n_kv_heads * capacity) {
        for (std::uint32_t h = 0; h < n_kv_heads; h++) {
            starts.push_back(h * capacity);
            lens.push_back(0);
        }
    }
};

// The host's own attention of one query head, in double.
std::vector<double> attend(const cache &c, std::uint32_t head, const float *query) {
    std::vector<double> out(head_dim);
    double sum = 0;
    for (std::uint32_t i = 0; i < c.lens[head]; i++) {
        const float *key = &c.keys[(c.starts[head] + i) * head_dim], *value = &c.values[(c.starts[head] + i) * head_dim];
        double dot = 0;
        for (std::uint32_t j = 0; j < head_dim; j++) dot += double(query[j]) * key[j];
        const double weight = std::exp(dot / std::sqrt(double(head_dim)));
        sum += weight;
        for (std::uint32_t j = 0; j < head_dim; j++) out[j] += weight * value[j];
    }
    for (double &x : out) x /= sum;
    return out;
}

} // namespace

int main() {
    // Prefill: 500 tokens, of which two in a hundred match what the last queries look for.
    cache cache;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> target(head_dim), queries(n_kv_heads * group * window * head_dim);
    for (float &x : target) x = normal(random);
    for (std::uint32_t h = 0; h < n_kv_heads; h++) {
        for (std::uint32_t i = 0; i < 500; i++) {
            const std::size_t row = cache.starts[h] + cache.lens[h]++;
            cache.positions[row] = static_cast<std::int32_t>(i);
            for (std::uint32_t j = 0; j < head_dim; j++) {
                cache.keys[row * head_dim + j] = normal(random) + (i % 50 == 17 ? 2 * target[j] : 0);
                cache.values[row * head_dim + j] = normal(random);
            }
        }
    }
    for (std::size_t i = 0; i < queries.size(); i++) queries[i] = target[i % head_dim] + 0.2f * normal(random);
    const std::vector<double> before = attend(cache, 0, queries.data());

    // What to keep: 64 of 500 entries per head on average, more for the head that needs more.
    auto layer = ecokv::sized<ecokv_layer_t>();
    layer.n_kv_heads = n_kv_heads;
    layer.group = group;
    layer.head_dim = head_dim;
    layer.n_layers = 1;
    layer.scale = 1 / std::sqrt(float(head_dim));
    layer.rows = n_kv_heads * capacity;
    layer.starts = cache.starts.data();
    layer.lens = cache.lens.data();
    layer.keys = cache.keys.data();
    layer.values = cache.values.data();
    layer.n_queries = window;
    layer.queries = queries.data();
    ecokv::evictor evictor{ecokv::policy("ecokv").adaptive_heads(0.2f)};
    evictor.run(64, layer);

    // The host's own buffers, whatever they hold.
    evictor.compact(cache.keys.data(), head_dim * sizeof(float));
    evictor.compact(cache.values.data(), head_dim * sizeof(float));
    evictor.compact(cache.positions.data(), sizeof(std::int32_t));
    std::uint32_t total = 0, found = 0;
    for (std::uint32_t h = 0; h < n_kv_heads; h++) {
        cache.lens[h] = static_cast<std::uint32_t>(evictor.kept(h).size());
        total += cache.lens[h];
        for (std::uint32_t i = 0; i < cache.lens[h]; i++) found += cache.positions[cache.starts[h] + i] % 50 == 17;
        std::printf("head %u keeps %u of 500\n", h, cache.lens[h]);
    }

    const std::vector<double> after = attend(cache, 0, queries.data());
    double error = 0, norm = 0;
    for (std::uint32_t j = 0; j < head_dim; j++) {
        error += (after[j] - before[j]) * (after[j] - before[j]);
        norm += before[j] * before[j];
    }
    error = std::sqrt(error / norm);
    std::printf("%u of 20 matching entries kept, attention changed by %.2f %%\n", found, 100 * error);
    return found == 20 && total == 2 * 64 && error < 0.05 ? 0 : 1;
}
