// ecokv.hpp: MODEL MMPROJ IMAGE. The image asks for a total of 26.45.
#include <fstream>
#include <iterator>
#include <type_traits>

#include "check.h"
#include "ecokv.hpp"

template <typename F> static ecokv_status_t thrown(F f) {
    try {
        f();
    } catch (const ecokv::error &e) {
        CHECK(std::string(e.what()).size() > 5);
        return e.status();
    }
    return ECOKV_OK;
}

static_assert(!std::is_copy_constructible_v<ecokv::engine> && std::is_nothrow_move_constructible_v<ecokv::engine>, "");
static_assert(!std::is_copy_assignable_v<ecokv::session> && std::is_nothrow_move_assignable_v<ecokv::session>, "");
static_assert(!std::is_copy_constructible_v<ecokv::prompt>, "");

static void core() {
    const std::uint32_t starts[] = {0}, lens[] = {4};
    const std::vector<float> keys = {1, 0, 5, 0, 2, 0, 9, 0};
    auto layer = ecokv::sized<ecokv_layer_t>();
    layer.n_kv_heads = layer.group = layer.n_layers = 1;
    layer.head_dim = 2;
    layer.rows = 4;
    layer.scale = 1;
    layer.starts = starts;
    layer.lens = lens;
    layer.keys = keys.data();
    ecokv::evictor evictor{ecokv::policy("knorm")};
    evictor.run(2, layer);
    const auto kept = evictor.kept(0);
    CHECK(kept.size() == 2 && kept[0] == 0 && kept[1] == 2); // the two smallest keys
    std::string names = "abcd";
    evictor.compact(&names[0], 1);
    CHECK(names.substr(0, 2) == "ac");
    CHECK(thrown([&] { evictor.run(0, layer); }) == ECOKV_BUDGET_TOO_SMALL);
    CHECK(thrown([] { ecokv::policy("nonsense").needs(); }) == ECOKV_UNKNOWN_METHOD);
    CHECK(thrown([] { ecokv::policy(std::string(99, 'x')); }) == ECOKV_UNKNOWN_METHOD);
    CHECK(ecokv::policy("snapkv").window(16).needs().window_queries == 16);
    CHECK(thrown([] { ecokv::policy("snapkv").modality_centroid().needs(); }) == ECOKV_CONFIG);
    CHECK(ecokv::policy("ecokv").modality_centroid().needs().window_queries == 8);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    core();
    std::ifstream file(argv[3], std::ios::binary);
    const std::vector<char> chars{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> image(chars.begin(), chars.end());

    CHECK(thrown([] { ecokv::engine("/no/such/model.gguf"); }) == ECOKV_IO);
    ecokv::engine opened(argv[1], argv[2], 1);
    ecokv::engine engine = std::move(opened);
    CHECK(!opened.get() && engine.info().has_vision == 1);
    const std::string question = "how much is the total?";
    std::string again;
    for (const std::uint32_t id : engine.tokenize(question)) again += engine.token_bytes(id);
    CHECK(again == question && engine.is_end(engine.info().eos) && engine.warnings().empty());

    ecokv::prompt prompt(engine);
    prompt.message("user").image(image).text("how much is the total?");
    CHECK(prompt.n_tokens() > 10 && prompt.n_image_tokens() > 0);
    CHECK(prompt.image_costs().size() == 1 && prompt.image_costs()[0].n_tokens == prompt.n_image_tokens());
    ecokv::session session(engine, ecokv::policy("ecokv"), 24, 16);
    std::uint32_t layers = 0;
    session.prefill(prompt, [&](std::uint32_t done, std::uint32_t) { return layers = done, true; });
    CHECK(layers == engine.info().n_layers);
    CHECK(session.answer(16) == "26.45");
    CHECK(session.stats().kv_bytes < session.stats().kv_bytes_full);
    CHECK(session.kept().size() == std::size_t(engine.info().n_layers) * engine.info().n_kv_heads);
    CHECK(session.positions(0, 0).size() == session.stats().n_past - prompt.n_tokens() + session.kept()[0]);

    // Back to the end of the prompt: the same answer, from its first token on.
    const auto n_prompt = static_cast<std::uint32_t>(prompt.n_tokens());
    session.rewind(n_prompt);
    CHECK(thrown([&] { session.logits(); }) == ECOKV_BAD_ORDER);
    CHECK(thrown([&] { session.rewind(n_prompt - 1); }) == ECOKV_REWIND);
    session.decode(engine.tokenize("26.45")[0]);
    CHECK(session.logits().size() == engine.info().n_vocab);
    CHECK("26.45" == engine.token_bytes(engine.tokenize("26.45")[0]) + session.answer(16));

    // What a callback throws comes out of the call that called back.
    session.reset();
    CHECK(thrown([&] { session.prefill(prompt, [](std::uint32_t, std::uint32_t) { return false; }); }) == ECOKV_CANCELLED);
    session.prefill(prompt);
    bool caught = false;
    try {
        session.generate(5, [](std::string_view) -> bool { throw std::logic_error("enough"); });
    } catch (const std::logic_error &e) {
        caught = std::string(e.what()) == "enough";
    }
    CHECK(caught);
    CHECK(session.generate(0, [](std::string_view) { return false; }).end == ECOKV_END_STOPPED);
    ecokv::session moved = std::move(session);
    moved = ecokv::session(engine);
    CHECK(thrown([&] { moved.sample(); }) == ECOKV_BAD_ORDER);
    std::printf("wrapper: all as expected\n");
    return 0;
}
