// Asks about a picture: ask MODEL.gguf MMPROJ.gguf IMAGE QUESTION [METHOD BUDGET]
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "ecokv.hpp"

int main(int argc, char **argv) try {
    if (argc != 5 && argc != 7) {
        std::cerr << "ask MODEL.gguf MMPROJ.gguf IMAGE QUESTION [METHOD BUDGET]\n";
        return 2;
    }
    std::ifstream file(argv[3], std::ios::binary);
    const std::vector<char> chars{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> image(chars.begin(), chars.end());

    ecokv::engine engine(argv[1], argv[2]);
    ecokv::prompt prompt(engine);
    prompt.message("user").image(image).text(argv[4]);
    auto session = argc == 7
        ? ecokv::session(engine, ecokv::policy(argv[5]), static_cast<std::uint32_t>(std::atoi(argv[6])), 256)
        : ecokv::session(engine);
    session.prefill(prompt, [](std::uint32_t done, std::uint32_t all) {
        std::cerr << "\rlayer " << done << " of " << all << (done == all ? "\n" : "") << std::flush;
        return true;
    });
    session.generate(256, [](std::string_view piece) { return static_cast<bool>(std::cout << piece << std::flush); });
    const ecokv_stats_t stats = session.stats();
    std::cout << '\n';
    std::cerr << prompt.n_tokens() << " prompt tokens, cache " << stats.kv_bytes << " of " << stats.kv_bytes_full
              << " bytes\n";
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 2;
}
