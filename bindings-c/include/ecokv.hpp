// ecokv for C++17: move-only owners of the handles, views instead of pointer and length, exceptions instead of statuses.
// Header only; what it leaves out is a call of the C functions with get().
#ifndef ECOKV_HPP
#define ECOKV_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ecokv.h"

namespace ecokv {

/// A failed call.
class error : public std::runtime_error {
public:
    error(ecokv_status_t status, const std::string &what) : std::runtime_error(what), status_(status) {}

    /// One of the `ECOKV_...` numbers.
    ecokv_status_t status() const noexcept { return status_; }

private:
    ecokv_status_t status_;
};

/// Throws for a failed call of ecokv.h, on the thread that made it.
inline void check(ecokv_status_t status) {
    if (status != ECOKV_OK) throw error(status, ecokv_last_error());
}

/// Throws for a failed call of ecokv_core.h.
inline void check(ecokv_status_t status, const ecokv_error_t &e) {
    if (status == ECOKV_OK) return;
    std::string text = std::string(e.what.data, e.what.len) + ": " + ecokv_status_text(status);
    if (e.need != 0 || e.got != 0) {
        text += " (expected " + std::to_string(e.need) + ", got " + std::to_string(e.got) + ")";
    }
    throw error(status, text);
}

/// Elements that belong to somebody else: what std::span is from C++20 on.
template <typename T> class view {
public:
    constexpr view() noexcept = default;
    constexpr view(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <typename C, typename = decltype(static_cast<T *>(std::declval<C &>().data()))>
    constexpr view(C &container) noexcept : data_(container.data()), size_(container.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t i) const { return data_[i]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/// A zeroed struct with its size set, as every struct with struct_size wants to begin.
template <typename T> T sized() {
    T value;
    std::memset(&value, 0, sizeof value);
    value.struct_size = sizeof value;
    return value;
}

/// A method and what is changed about it.
class policy {
public:
    explicit policy(std::string_view method) : c_(sized<ecokv_policy_t>()) {
        if (method.size() >= sizeof c_.method) throw error(ECOKV_UNKNOWN_METHOD, "no method has so long a name");
        std::memcpy(c_.method, method.data(), method.size());
    }

    policy &window(std::uint32_t n) { return c_.window = n, set(ECOKV_SET_WINDOW); }
    policy &keep_recent(std::uint32_t n) { return c_.keep_recent = n, set(ECOKV_SET_KEEP_RECENT); }
    policy &sinks(std::uint32_t n) { return c_.sinks = n, set(ECOKV_SET_SINKS); }
    policy &seed(std::uint64_t n) { return c_.seed = n, set(ECOKV_SET_SEED); }
    /// The host's own scores, from `given` of the layer.
    policy &own_scores() { return set(ECOKV_SET_GIVEN); }
    policy &geometry(float alpha, float beta) { return c_.alpha = alpha, c_.beta = beta, set(ECOKV_SET_GEOMETRY); }
    /// Euclidean diversity from the mean key of the same kind, text or image.
    policy &modality_centroid() { return c_.centroid = ECOKV_CENTROID_MODALITY, set(ECOKV_SET_CENTROID); }
    policy &adaptive_heads(float floor) {
        return c_.head_budget = ECOKV_HEADS_ADAPTIVE, c_.floor = floor, set(ECOKV_SET_HEAD_BUDGET);
    }
    policy &pyramid(std::uint32_t beta) {
        return c_.layer_budget = ECOKV_LAYERS_PYRAMID, c_.pyramid_beta = beta, set(ECOKV_SET_LAYER_BUDGET);
    }

    /// What the host has to record.
    ecokv_needs_t needs() const {
        ecokv_needs_t needs;
        ecokv_error_t e;
        check(ecokv_policy_needs(&c_, &needs, &e), e);
        return needs;
    }

    const ecokv_policy_t *get() const noexcept { return &c_; }

private:
    policy &set(std::uint32_t bit) { return c_.set |= bit, *this; }

    ecokv_policy_t c_;
};

/// Chooses entries layer after layer, with memory that is kept between calls.
class evictor {
public:
    explicit evictor(policy p) : policy_(p) {}

    /// Chooses what one layer keeps; see kept() and counts().
    ecokv_report_t run(std::uint32_t budget, const ecokv_layer_t &layer) {
        ecokv_error_t e;
        ecokv_workspace_size_t size;
        check(ecokv_workspace_size(policy_.get(), &layer, &size, &e), e);
        f32s_.resize(size.n_f32s);
        u32s_.resize(size.n_u32s);
        indices_.resize(layer.rows);
        counts_.resize(layer.n_kv_heads);
        starts_.assign(layer.starts, layer.starts + layer.n_kv_heads);
        rows_ = layer.rows;
        const ecokv_workspace_t workspace = {f32s_.data(), u32s_.data(), f32s_.size(), u32s_.size()};
        const ecokv_keep_t keep = lists();
        ecokv_report_t report;
        check(ecokv_evict_layer(policy_.get(), budget, &layer, &workspace, &keep, &report, &e), e);
        return report;
    }

    /// Entries a head keeps, ascending, relative to its first row.
    view<const std::uint32_t> kept(std::size_t head) const {
        return {indices_.data() + starts_.at(head), counts_.at(head)};
    }

    /// Moves the kept rows of every head to its front, in any buffer with a row of `row_bytes` per entry.
    void compact(void *data, std::size_t row_bytes) {
        ecokv_error_t e;
        const ecokv_keep_t keep = lists();
        check(ecokv_compact(data, row_bytes, rows_, starts_.data(), starts_.size(), &keep, &e), e);
    }

private:
    ecokv_keep_t lists() { return {indices_.data(), counts_.data(), indices_.size(), counts_.size()}; }

    policy policy_;
    std::vector<float> f32s_;
    std::vector<std::uint32_t> u32s_, indices_, counts_, starts_;
    std::size_t rows_ = 0;
};

namespace detail {
template <typename T, void (*Free)(T *)> struct deleter {
    void operator()(T *handle) const noexcept { Free(handle); }
};
template <typename T, void (*Free)(T *)> using owner = std::unique_ptr<T, deleter<T, Free>>;

/// A list of a length that is asked for first: `call(to, capacity, n)`.
template <typename List, typename F> List all(F &&call) {
    std::size_t n = 0;
    check(call(nullptr, 0, &n));
    List list(n, typename List::value_type());
    check(call(list.data(), n, &n));
    return list;
}

/// Carries an exception over a callback, which it must not leave.
struct guarded {
    std::exception_ptr thrown;

    template <typename F> std::int32_t stops(F &&goes_on) noexcept {
        try {
            return goes_on() ? 0 : 1;
        } catch (...) {
            thrown = std::current_exception();
            return 1;
        }
    }
    void rethrow() const {
        if (thrown) std::rethrow_exception(thrown);
    }
};
} // namespace detail

/// An opened model; share it by reference.
class engine {
public:
    explicit engine(const ecokv_engine_params_t &params) {
        ecokv_engine_t *handle = nullptr;
        check(ecokv_engine_open(&params, &handle));
        handle_.reset(handle);
    }

    /// From files; without `mmproj` the model cannot see.
    explicit engine(const std::string &model, const std::string &mmproj = {}, std::uint32_t n_threads = 0)
        : engine(params(model, mmproj, n_threads)) {}

    ecokv_engine_info_t info() const {
        ecokv_engine_info_t info;
        check(ecokv_engine_info(get(), &info, sizeof info));
        return info;
    }

    std::vector<std::uint32_t> tokenize(std::string_view text, std::uint32_t flags = 0) const {
        return detail::all<std::vector<std::uint32_t>>([&](std::uint32_t *ids, std::size_t room, std::size_t *n) {
            return ecokv_tokenize(get(), text.data(), text.size(), flags, ids, room, n);
        });
    }

    /// The bytes of one token; none for a control token.
    std::string token_bytes(std::uint32_t id) const {
        return detail::all<std::string>([&](char *to, std::size_t room, std::size_t *n) {
            return ecokv_token_bytes(get(), id, to, room, n);
        });
    }

    bool is_end(std::uint32_t id) const {
        std::uint32_t is_end = 0;
        return check(ecokv_token_is_end(get(), id, &is_end)), is_end != 0;
    }

    /// What is odd about the file, one line each.
    std::string warnings() const {
        return detail::all<std::string>([&](char *to, std::size_t room, std::size_t *n) {
            return ecokv_engine_warnings(get(), to, room, n);
        });
    }

    ecokv_engine_t *get() const noexcept { return handle_.get(); }

private:
    static ecokv_engine_params_t params(const std::string &model, const std::string &mmproj, std::uint32_t n_threads) {
        auto p = sized<ecokv_engine_params_t>();
        p.n_threads = n_threads;
        p.model_path = model.c_str();
        if (!mmproj.empty()) p.mmproj_path = mmproj.c_str();
        return p;
    }

    detail::owner<ecokv_engine_t, ecokv_engine_free> handle_;
};

/// Text and images, put together.
class prompt {
public:
    explicit prompt(const engine &e, std::uint32_t kind = ECOKV_PROMPT_CHAT) {
        ecokv_prompt_t *handle = nullptr;
        check(ecokv_prompt_new(e.get(), kind, &handle));
        handle_.reset(handle);
    }

    prompt &message(const std::string &role) { return check(ecokv_prompt_add_message(get(), role.c_str())), *this; }
    prompt &text(std::string_view text) {
        return check(ecokv_prompt_add_text(get(), text.data(), text.size())), *this;
    }
    /// The bytes of a PNG or JPEG file.
    prompt &image(view<const std::uint8_t> bytes) {
        return check(ecokv_prompt_add_image(get(), bytes.data(), bytes.size())), *this;
    }
    /// `[height][width][3]`
    prompt &pixels(std::uint32_t width, std::uint32_t height, view<const std::uint8_t> rgb) {
        return check(ecokv_prompt_add_pixels(get(), width, height, rgb.data(), rgb.size())), *this;
    }
    prompt &tokens(view<const std::uint32_t> ids) {
        return check(ecokv_prompt_add_tokens(get(), ids.data(), ids.size())), *this;
    }

    std::size_t n_tokens() {
        std::size_t n = 0;
        return check(ecokv_prompt_count(get(), &n, nullptr)), n;
    }

    /// Of those, the images'.
    std::size_t n_image_tokens() {
        std::size_t n = 0, images = 0;
        return check(ecokv_prompt_count(get(), &n, &images)), images;
    }
    /// What each image takes, in order.
    std::vector<ecokv_image_cost_t> image_costs() {
        return detail::all<std::vector<ecokv_image_cost_t>>([&](ecokv_image_cost_t *to, std::size_t room, std::size_t *n) {
            return ecokv_prompt_image_costs(get(), to, room, n);
        });
    }

    ecokv_prompt_t *get() const noexcept { return handle_.get(); }

private:
    detail::owner<ecokv_prompt_t, ecokv_prompt_free> handle_;
};

/// A conversation.
class session {
public:
    /// Keeps everything.
    explicit session(const engine &e) : session(e, sized<ecokv_session_params_t>()) {}

    /// Keeps `budget` entries per KV head.
    session(const engine &e, const policy &p, std::uint32_t budget, std::uint32_t n_generate = 0)
        : session(e, params(p, budget, n_generate)) {}

    session(const engine &e, const ecokv_session_params_t &params) {
        ecokv_session_t *handle = nullptr;
        check(ecokv_session_new(e.get(), &params, &handle));
        handle_.reset(handle);
    }

    /// `goes_on(layers done, layers)` returns false to cancel.
    void prefill(prompt &p, const std::function<bool(std::uint32_t, std::uint32_t)> &goes_on = {}) {
        call call{&goes_on, {}};
        auto c = sized<ecokv_prefill_params_t>();
        if (goes_on) c.on_progress = progress, c.user = &call;
        const ecokv_status_t status = ecokv_session_prefill(get(), p.get(), &c);
        call.guard.rethrow();
        check(status);
    }

    /// `goes_on(text)` gets every piece as it is made, and returns false to stop.
    ecokv_generated_t generate(std::uint32_t max_tokens, const std::function<bool(std::string_view)> &goes_on = {}) {
        stream stream{&goes_on, {}};
        auto c = sized<ecokv_generate_params_t>();
        c.max_tokens = max_tokens;
        if (goes_on) c.on_token = token, c.user = &stream;
        ecokv_generated_t result;
        const ecokv_status_t status = ecokv_session_generate(get(), &c, &result);
        stream.guard.rethrow();
        check(status);
        return result;
    }

    /// The whole answer.
    std::string answer(std::uint32_t max_tokens) {
        std::string all;
        generate(max_tokens, [&](std::string_view piece) { return all += piece, true; });
        return all;
    }

    void sampling(const ecokv_sampling_t &s) { check(ecokv_session_set_sampling(get(), &s)); }
    void reset() { check(ecokv_session_reset(get())); }
    /// Back to the first `n_past` positions.
    void rewind(std::uint32_t n_past) { check(ecokv_session_rewind(get(), n_past)); }
    void decode(std::uint32_t id) { check(ecokv_session_decode(get(), id)); }
    std::uint32_t sample() {
        std::uint32_t id = 0;
        return check(ecokv_session_sample(get(), &id)), id;
    }
    /// Of the next token, `[n_vocab]`.
    std::vector<float> logits() {
        return detail::all<std::vector<float>>([&](float *to, std::size_t room, std::size_t *n) {
            return ecokv_session_logits(get(), to, room, n);
        });
    }
    /// Entries kept after the last prefill, `[n_layers][n_kv_heads]`.
    std::vector<std::uint32_t> kept() const {
        return detail::all<std::vector<std::uint32_t>>([&](std::uint32_t *to, std::size_t room, std::size_t *n) {
            return ecokv_session_kept(get(), to, room, n);
        });
    }
    /// Positions of the entries that a head holds now, ascending.
    std::vector<std::uint32_t> positions(std::uint32_t layer, std::uint32_t kv_head) const {
        return detail::all<std::vector<std::uint32_t>>([&](std::uint32_t *to, std::size_t room, std::size_t *n) {
            return ecokv_session_positions(get(), layer, kv_head, to, room, n);
        });
    }
    ecokv_stats_t stats() const {
        ecokv_stats_t stats;
        check(ecokv_session_stats(get(), &stats, sizeof stats));
        return stats;
    }

    ecokv_session_t *get() const noexcept { return handle_.get(); }

private:
    struct call {
        const std::function<bool(std::uint32_t, std::uint32_t)> *f;
        detail::guarded guard;
    };
    struct stream {
        const std::function<bool(std::string_view)> *f;
        detail::guarded guard;
    };

    static std::int32_t progress(void *user, std::uint32_t done, std::uint32_t total) {
        auto &c = *static_cast<call *>(user);
        return c.guard.stops([&] { return (*c.f)(done, total); });
    }
    static std::int32_t token(void *user, std::uint32_t, const char *text, std::size_t len) {
        auto &s = *static_cast<stream *>(user);
        return s.guard.stops([&] { return (*s.f)(std::string_view(text, len)); });
    }
    static ecokv_session_params_t params(const policy &p, std::uint32_t budget, std::uint32_t n_generate) {
        auto c = sized<ecokv_session_params_t>();
        c.policy = p.get();
        c.budget = budget;
        c.n_generate = n_generate;
        return c;
    }

    detail::owner<ecokv_session_t, ecokv_session_free> handle_;
};

} // namespace ecokv

#endif
