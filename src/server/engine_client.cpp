#include "server/generation.h"

namespace winnow::server {
namespace {

class EngineForwarder final : public EngineClient {
 public:
  explicit EngineForwarder(Engine& engine) : engine_(engine) {}
  Engine::Submitted submit(GenerationRequest request) override {
    return engine_.submit(std::move(request));
  }
  void abort(RequestId id) override { engine_.abort(id); }
  void stop_choice(RequestId id, std::int32_t choice) override { engine_.stop_choice(id, choice); }
  EngineStats stats() const override { return engine_.stats(); }

 private:
  Engine& engine_;
};

}  // namespace

std::unique_ptr<EngineClient> make_engine_client(Engine& engine) {
  return std::make_unique<EngineForwarder>(engine);
}

}  // namespace winnow::server
