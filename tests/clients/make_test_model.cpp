// make_test_model FOLDER: writes a small checkpoint that says random bytes, for the client tests.
#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "server/testing/test_server.h"

namespace {

// As M3's template in what matters here: turns, a tools section, a thinking switch.
constexpr const char* kTemplate =
    "{%- for message in messages -%}\n"
    "]~b]{{ message.role }}\n"
    "{{ message.content }}[e~[\n"
    "{% endfor -%}\n"
    "{%- if tools -%}\n"
    "]~b]tools\n"
    "{% for tool in tools %}{{ tool.function | tojson }}\n"
    "{% endfor %}[e~[\n"
    "{% endif -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "]~b]ai\n"
    "{% if thinking_mode is defined and thinking_mode == 'enabled' %}<mm:think>{% endif -%}\n"
    "{%- endif -%}\n";

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file) throw winnow::Error(winnow::ErrorCode::kIo, path.string() + ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_test_model FOLDER\n", stderr);
    return 2;
  }
  try {
    const std::filesystem::path folder = argv[1];
    winnow::RandomCheckpoint options = winnow::random_m31();
    options.vocab_size = winnow::server::testing::kTestVocab + 6;  // a few ids without a string
    options.max_position_embeddings = 4096;
    options.drafter = winnow::RandomDrafter{};
    options.drafter->noise_token = winnow::server::testing::kTestVocab;
    winnow::write_random_checkpoint(folder, options);
    write(folder / "tokenizer.json", winnow::server::testing::byte_tokenizer_json());
    write(folder / "chat_template.jinja", kTemplate);
    write(folder / "generation_config.json",
          R"({"eos_token_id": [256], "temperature": 0.9, "top_p": 0.95, "top_k": 40})");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_test_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
