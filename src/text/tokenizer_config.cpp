#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "text/byte_alphabet.h"

namespace winnow {

namespace {

using Json = nlohmann::json;

// The vocabulary both ways; views into the parsed document.
struct Known {
  std::unordered_map<std::string_view, TokenId> ids;
  std::unordered_map<TokenId, std::string_view> owners;
};

constexpr int kMaxSequenceDepth = 8;

// A value and where it stands, so that every complaint can say where.
struct Node {
  const Json* json;
  std::string path;
  std::int64_t index = -1;  // of a list item, so that long lists need no path per item

  [[noreturn]] void fail(std::string_view accepted, std::string_view hint = {}) const {
    std::string got = json->dump(-1, ' ', false, Json::error_handler_t::replace);
    if (got.size() > 80) got = got.substr(0, 77) + "...";
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}{}: {}, accepted: {}", path,
                            index < 0 ? "" : fmt::format("[{}]", index), got, accepted),
                std::string(hint));
  }

  bool is_null() const { return json->is_null(); }

  Node child(const std::string& step, const Json& value) const { return {&value, path + step}; }

  Node at(const char* key) const {
    static const Json kNull;
    if (!json->is_object()) fail("an object");
    const auto found = json->find(key);
    return {found == json->end() ? &kNull : &*found, path + "." + key};
  }

  std::vector<Node> items() const {
    if (!json->is_array()) fail("a list");
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < json->size(); ++i) {
      nodes.push_back({&(*json)[i], fmt::format("{}[{}]", path, i)});
    }
    return nodes;
  }

  const std::string& text(std::string_view accepted = "a string") const {
    if (!json->is_string()) fail(accepted);
    return json->get_ref<const std::string&>();
  }

  bool flag(bool if_absent) const {
    if (json->is_null()) return if_absent;
    if (!json->is_boolean()) fail("true or false");
    return json->get<bool>();
  }

  TokenId id() const {
    if (!json->is_number_integer()) fail("a token id");
    const auto value = json->is_number_unsigned()
                           ? static_cast<std::int64_t>(std::min<std::uint64_t>(
                                 json->get<std::uint64_t>(), std::uint64_t{1} << 62))
                           : json->get<std::int64_t>();
    if (value < 0 || value > kMaxTokenId) fail(fmt::format("a token id up to {}", kMaxTokenId));
    return static_cast<TokenId>(value);
  }
};

void require_empty(const Node& node, std::string_view why) {
  const bool is_empty = node.is_null() || (node.json->is_string() && node.text().empty()) ||
                        (node.json->is_boolean() && !node.flag(false)) ||
                        (node.json->is_number() && node.json->get<double>() == 0);
  if (!is_empty) node.fail("null", why);
}

std::pair<std::string_view, std::string_view> merge_pair(const Node& node) {
  if (node.json->is_array()) {
    const Json& pair = *node.json;
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      node.fail("two strings");
    }
    return {pair[0].get_ref<const std::string&>(), pair[1].get_ref<const std::string&>()};
  }
  const std::string_view line = node.text("\"left right\" or [\"left\", \"right\"]");
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    node.fail("\"left right\" with one space");
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

void read_merges(const Node& merges, const Known& known, BpeConfig& bpe) {
  if (!merges.json->is_array()) merges.fail("a list");
  const auto id_of = [&](const Node& node, std::string_view token) {
    const auto found = known.ids.find(token);
    if (found == known.ids.end()) {
      node.fail("tokens of the vocabulary", fmt::format("\"{}\" is not in model.vocab", token));
    }
    return found->second;
  };
  std::string joined;
  bpe.merges.reserve(merges.json->size());
  Node node{nullptr, merges.path};
  for (std::size_t i = 0; i < merges.json->size(); ++i) {
    const Json& item = (*merges.json)[i];
    if (item.is_string() && item.get_ref<const std::string&>().starts_with("#version")) continue;
    node.json = &item;
    node.index = static_cast<std::int64_t>(i);
    const auto [left, right] = merge_pair(node);
    joined.assign(left);
    joined.append(right);
    bpe.merges.push_back({id_of(node, left), id_of(node, right), id_of(node, joined)});
  }
}

void read_model(const Node& model, Known& known, TokenizerConfig& config) {
  const Node type = model.at("type");
  if (!type.is_null() && type.text() != "BPE") type.fail("\"BPE\"");
  require_empty(model.at("dropout"), "dropout makes ids random; serve without it");
  require_empty(model.at("continuing_subword_prefix"), "byte-level BPE has no subword prefix");
  require_empty(model.at("end_of_word_suffix"), "byte-level BPE has no word suffix");
  require_empty(model.at("byte_fallback"), "in byte-level BPE bytes are ordinary tokens");
  config.bpe.fuse_unk = model.at("fuse_unk").flag(false);
  config.bpe.ignore_merges = model.at("ignore_merges").flag(false);

  const Node vocab = model.at("vocab");
  if (!vocab.json->is_object()) vocab.fail("an object of token strings to ids");
  known.ids.reserve(vocab.json->size());
  known.owners.reserve(vocab.json->size());
  for (const auto& [token, value] : vocab.json->items()) {
    const auto node = [&, &name = token, &json = value] { return vocab.child("." + name, json); };
    const bool is_plain = value.is_number_unsigned() && value.get<std::uint64_t>() <= kMaxTokenId;
    const TokenId id = is_plain ? value.get<TokenId>() : node().id();
    if (token.empty()) continue;
    const auto [other, is_new] = known.owners.emplace(id, token);
    if (!is_new) {
      node().fail("one token per id", fmt::format("\"{}\" has the same id", other->second));
    }
    known.ids.emplace(token, id);
    config.vocab.emplace_back(token, id);
    if (std::optional<std::string> bytes = bytes_of_spelling(token)) {
      config.bpe.vocab.emplace_back(*std::move(bytes), id);
    }
  }

  const Node unk = model.at("unk_token");
  if (!unk.is_null()) {
    const auto found = known.ids.find(unk.text());
    if (found != known.ids.end()) config.bpe.unk_id = found->second;
  }
  read_merges(model.at("merges"), known, config.bpe);
}

void read_added_tokens(const Node& list, Known& known, TokenizerConfig& config) {
  if (list.is_null()) return;
  for (const Node& node : list.items()) {
    AddedToken token;
    token.id = node.at("id").id();
    token.content = node.at("content").text();
    if (token.content.empty()) continue;
    token.is_special = node.at("special").flag(false);
    token.is_normalized = node.at("normalized").flag(!token.is_special);
    token.strips_left = node.at("lstrip").flag(false);
    token.strips_right = node.at("rstrip").flag(false);
    token.is_single_word = node.at("single_word").flag(false);
    const auto in_model = known.ids.find(token.content);
    if (in_model != known.ids.end() && in_model->second != token.id) {
      node.at("id").fail(fmt::format("{}, as in model.vocab", in_model->second));
    }
    const std::string& content = node.at("content").text();  // outlives `token`
    const auto [other, is_new] = known.owners.emplace(token.id, content);
    if (!is_new && other->second != token.content) {
      node.at("id").fail("an id of its own", fmt::format("\"{}\" has it", other->second));
    }
    config.added_tokens.push_back(std::move(token));
  }
}

void read_normalizer(const Node& node, int depth, std::vector<NormalForm>& forms) {
  if (node.is_null()) return;
  const std::string& type = node.at("type").text();
  if (type == "Sequence") {
    if (depth == kMaxSequenceDepth) node.fail("fewer nested sequences");
    for (const Node& item : node.at("normalizers").items()) {
      read_normalizer(item, depth + 1, forms);
    }
  } else if (type == "NFC") {
    forms.push_back(NormalForm::kNfc);
  } else if (type == "NFD") {
    forms.push_back(NormalForm::kNfd);
  } else if (type == "NFKC") {
    forms.push_back(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    forms.push_back(NormalForm::kNfkd);
  } else {
    node.at("type").fail("NFC, NFD, NFKC, NFKD, Sequence");
  }
}

SplitBehavior read_behavior(const Node& node, std::optional<SplitBehavior> if_absent = {}) {
  if (node.is_null() && if_absent) return *if_absent;
  const std::string& name = node.text();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.fail("Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

PreTokenizerStep read_split(const Node& node) {
  PreTokenizerStep step{PreTokenizerStep::Kind::kExpression, {}};
  step.behavior = read_behavior(node.at("behavior"));
  step.is_inverted = node.at("invert").flag(false);
  const Node pattern = node.at("pattern");
  const Node regex = pattern.at("Regex");
  if (!regex.is_null()) {
    step.pattern = regex.text();
  } else {
    step.kind = PreTokenizerStep::Kind::kLiteral;
    step.pattern = pattern.at("String").text("a string, or pattern.Regex");
  }
  if (step.pattern.empty()) pattern.fail("a pattern of at least one character");
  return step;
}

// ByteLevel itself only maps bytes to the alphabet, which the merges here do without; what is left
// are its prefix space and its expression.
void read_byte_level(const Node& node, std::vector<PreTokenizerStep>& steps) {
  if (node.at("add_prefix_space").flag(true)) {
    steps.push_back({PreTokenizerStep::Kind::kPrefixSpace, {}});
  }
  if (node.at("use_regex").flag(true)) {
    steps.push_back({PreTokenizerStep::Kind::kExpression, std::string(kGpt2Split)});
  }
}

void read_pre_tokenizer(const Node& node, int depth, bool* has_byte_level,
                        std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  if (*has_byte_level) node.fail("nothing after ByteLevel", "make ByteLevel the last step");
  const Node type = node.at("type");
  const std::string& name = type.text("the name of a pre-tokenizer");
  if (name == "Sequence") {
    if (depth == kMaxSequenceDepth) node.fail("fewer nested sequences");
    for (const Node& item : node.at("pretokenizers").items()) {
      read_pre_tokenizer(item, depth + 1, has_byte_level, steps);
    }
  } else if (name == "Split") {
    steps.push_back(read_split(node));
  } else if (name == "ByteLevel") {
    read_byte_level(node, steps);
    *has_byte_level = true;
  } else if (name == "Digits") {
    const bool is_single = node.at("individual_digits").flag(false);
    steps.push_back(
        {Kind::kDigits, {}, is_single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (name == "Punctuation") {
    steps.push_back(
        {Kind::kPunctuation, {}, read_behavior(node.at("behavior"), SplitBehavior::kIsolated)});
  } else if (name == "Whitespace") {
    steps.push_back({Kind::kWords, {}, SplitBehavior::kRemoved, true});
  } else if (name == "WhitespaceSplit") {
    steps.push_back({Kind::kWhiteSpace, {}, SplitBehavior::kRemoved});
  } else {
    type.fail("Sequence, Split, ByteLevel, Digits, Punctuation, Whitespace, WhitespaceSplit");
  }
}

PostProcessorStep read_template(const Node& node) {
  PostProcessorStep step{PostProcessorStep::Kind::kAddTokens};
  bool has_sequence = false;
  for (const Node& piece : node.at("single").items()) {
    const Node sequence = piece.at("Sequence");
    if (!sequence.is_null()) {
      if (has_sequence) piece.fail("one Sequence");
      has_sequence = true;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").text();
    const Node tokens = node.at("special_tokens").at(name.c_str()).at("ids");
    for (const Node& id : tokens.items()) {
      (has_sequence ? step.after : step.before).push_back(id.id());
    }
  }
  if (!has_sequence) node.at("single").fail("a list with one Sequence");
  return step;
}

void read_post_processor(const Node& node, int depth, std::vector<PostProcessorStep>& steps) {
  if (node.is_null()) return;
  const Node type = node.at("type");
  const std::string& name = type.text();
  if (name == "Sequence") {
    if (depth == kMaxSequenceDepth) node.fail("fewer nested sequences");
    for (const Node& item : node.at("processors").items()) {
      read_post_processor(item, depth + 1, steps);
    }
  } else if (name == "ByteLevel") {
    if (node.at("trim_offsets").flag(true)) {
      PostProcessorStep step{PostProcessorStep::Kind::kTrimOffsets};
      step.has_prefix_space = node.at("add_prefix_space").flag(true);
      steps.push_back(std::move(step));
    }
  } else if (name == "TemplateProcessing") {
    steps.push_back(read_template(node));
  } else {
    type.fail("ByteLevel, TemplateProcessing, Sequence");
  }
}

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view json, std::string_view name) {
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kInvalidCheckpoint, fmt::format("{}: {}", name, error.what()));
  }
  const Node node{&root, std::string(name)};
  if (!root.is_object()) node.fail("an object", "is this a Hugging Face tokenizer.json?");
  TokenizerConfig config;
  Known known;
  read_model(node.at("model"), known, config);
  read_added_tokens(node.at("added_tokens"), known, config);
  read_normalizer(node.at("normalizer"), 0, config.normal_forms);
  bool has_byte_level = false;
  const Node pre_tokenizer = node.at("pre_tokenizer");
  if (!pre_tokenizer.is_null()) {
    read_pre_tokenizer(pre_tokenizer, 0, &has_byte_level, config.pre_tokenizer);
  }
  if (!has_byte_level) {
    pre_tokenizer.fail("ByteLevel, or a Sequence that ends in it",
                       "only byte-level BPE tokenizers can be served");
  }
  read_post_processor(node.at("post_processor"), 0, config.post_processor);
  const Node decoder = node.at("decoder");
  if (decoder.is_null() || decoder.at("type").text() != "ByteLevel") decoder.fail("ByteLevel");
  return config;
}

}  // namespace winnow
