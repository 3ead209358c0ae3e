// What the engine asks of a grammar, answered by text/grammar: joins two folders that do not know
// each other.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "engine/sample/token_filter.h"
#include "grammar/output_constraint.h"

namespace winnow::server {

class TokenConstraint final : public TokenFilter {
 public:
  explicit TokenConstraint(std::unique_ptr<OutputConstraint> constraint)
      : constraint_(std::move(constraint)) {}

  [[nodiscard]] bool fill_mask(std::span<std::uint32_t> mask) override {
    return constraint_->fill_mask(mask);
  }
  std::optional<TokenId> end_detour() const override { return constraint_->end_detour(); }
  void accept(TokenId token) override { constraint_->accept(token); }
  void rollback(std::int32_t num_tokens) override { constraint_->rollback(num_tokens); }
  std::unique_ptr<TokenFilter> clone() const override {
    return std::make_unique<TokenConstraint>(constraint_->clone());
  }

 private:
  std::unique_ptr<OutputConstraint> constraint_;
};

}  // namespace winnow::server
