#include "cli/foreign_habits.h"

#include <map>

namespace winnow::cli {

std::string foreign_habit(const std::string& word) {
  static const std::map<std::string, std::string> kHabits = {
      {"-c", "--max-model-len"},
      {"--ctx-size", "--max-model-len"},
      {"--context-length", "--max-model-len"},
      {"-np", "--max-num-seqs"},
      {"--parallel", "--max-num-seqs"},
      {"--slots", "--max-num-seqs"},
      {"-t", "--threads"},
      {"-tb", "--threads"},
      {"--threads-batch", "--threads"},
      {"-b", "--max-num-batched-tokens"},
      {"-ub", "--max-num-batched-tokens"},
      {"--batch-size", "--max-num-batched-tokens"},
      {"--ubatch-size", "--max-num-batched-tokens"},
      {"-m", "the model folder as the first word: winnow serve FOLDER"},
      {"-hf", "a model folder: models are not downloaded"},
      {"-ctk", "--kv-cache-dtype"},
      {"-ctv", "--kv-cache-dtype"},
      {"--cache-type-k", "--kv-cache-dtype"},
      {"--cache-type-v", "--kv-cache-dtype"},
      {"-ngl", "--device"},
      {"--n-gpu-layers", "--device"},
      {"-a", "--served-model-name"},
      {"--alias", "--served-model-name"},
      {"--jinja", "nothing: the checkpoint's chat template is always used"},
      {"-fa", "nothing: attention has one implementation per machine"},
      {"--flash-attn", "nothing: attention has one implementation per machine"},
      {"-s", "--seed"},
      {"--numa", "--pin-threads"},
  };
  const auto it = kHabits.find(word);
  return it == kHabits.end() ? std::string() : it->second;
}

}  // namespace winnow::cli
