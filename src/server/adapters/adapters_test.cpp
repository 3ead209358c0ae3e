// Adapters by name: the routes that load and unload them, who may, and what requests get.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/error.h"
#include "server/adapters/adapter_registry.h"
#include "server/testing/test_server.h"

namespace winnow::server::testing {
namespace {

using ::testing::HasSubstr;

class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "adapter_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class FakeAdapter final : public ModelAdapter {
 public:
  std::int64_t num_bytes() const override { return 1000; }
  std::uint64_t fingerprint() const override { return 7; }
  std::int32_t rank() const override { return 8; }
};

std::shared_ptr<const ModelAdapter> read_fake(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "adapter_config.json")) {
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: no adapter_config.json", folder.string()));
  }
  return std::make_shared<FakeAdapter>();
}

/// A folder that read_fake() takes.
std::string adapter_folder(const Folder& folder) {
  std::ofstream(folder.path() / "adapter_config.json") << "{}";
  return folder.path().string();
}

constexpr const char* kLoad = "/v1/load_lora_adapter";
constexpr const char* kUnload = "/v1/unload_lora_adapter";

std::string load_body(const std::string& name, const std::string& path, bool in_place = false) {
  return Json{{"lora_name", name}, {"lora_path", path}, {"load_inplace", in_place}}.dump();
}

std::string error_type_of(const TestResponse& response) {
  return Json::parse(response.body)["error"]["type"].get<std::string>();
}

TestServerOptions open_options(AdapterRegistry& registry) {
  TestServerOptions options;
  options.app.has_adapters = true;
  options.app.may_change_adapters = true;
  options.adapters = &registry;
  return options;
}

TEST(Adapters, AreLoadedListedUsedAndUnloaded) {
  const Folder folder;
  AdapterRegistry registry(read_fake, 4);
  registry.set_model_names({"test-model", "alias"});
  TestServer server(open_options(registry));
  const TestResponse loaded = server.post(kLoad, load_body("sql", adapter_folder(folder)));
  EXPECT_EQ(loaded.status, 200);
  EXPECT_EQ(loaded.body, "Success: LoRA adapter 'sql' added successfully.");
  EXPECT_THAT(loaded.header("Content-Type"), HasSubstr("text/plain"));

  const Json models = Json::parse(server.get("/v1/models").body);
  ASSERT_EQ(models["data"].size(), 3U);
  const Json& card = models["data"][2];
  EXPECT_EQ(card["id"], "sql");
  EXPECT_EQ(card["parent"], "test-model");
  EXPECT_EQ(card["root"], folder.path().string());
  EXPECT_EQ(models["last_id"], "sql");
  EXPECT_EQ(Json::parse(server.get("/v1/models/sql").body), card);

  const TestResponse reply = server.post(kChat, chat(R"("model":"sql")"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["model"], "sql");
  EXPECT_EQ(server.engine().last_request().adapter, registry.find("sql")->weights);
  EXPECT_EQ(server.engine().last_request().adapter_name, "sql");
  for (const char* base : {"test-model", "alias"}) {
    EXPECT_EQ(server.post(kChat, chat(fmt::format(R"("model":"{}")", base))).status, 200);
    EXPECT_EQ(server.engine().last_request().adapter, nullptr);
  }
  const struct {
    const char* path;
    const char* body;
    bool generates;
  } others[] = {
      {"/v1/completions", R"({"model":"sql","prompt":"Hi"})", true},
      {"/v1/responses", R"({"model":"sql","input":"Hi"})", true},
      {"/v1/messages",
       R"({"model":"sql","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]})", true},
      {"/v1/messages/count_tokens",
       R"({"model":"sql","messages":[{"role":"user","content":"Hi"}]})", false},
      {"/tokenize", R"({"model":"sql","prompt":"Hi"})", false},
      {"/detokenize", R"({"model":"sql","tokens":[72]})", false},
  };
  for (const auto& other : others) {
    server.post(kChat, chat());
    EXPECT_EQ(server.post(other.path, other.body).status, 200) << other.path;
    EXPECT_EQ(server.engine().last_request().adapter != nullptr, other.generates) << other.path;
  }

  const TestResponse unloaded = server.post(kUnload, R"({"lora_name":"sql","lora_int_id":1})");
  EXPECT_EQ(unloaded.status, 200);
  EXPECT_EQ(unloaded.body, "Success: LoRA adapter 'sql' removed successfully.");
  const TestResponse gone = server.post(kChat, chat(R"("model":"sql")"));
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(error_type_of(gone), "NotFoundError");
}

TEST(Adapters, MistakesAreToldAsClientsOfVllmKnowThem) {
  const Folder folder, empty;
  const std::string path = adapter_folder(folder);
  AdapterRegistry registry(read_fake, 2);
  registry.set_model_names({"test-model"});
  TestServer server(open_options(registry));
  ASSERT_EQ(server.post(kLoad, load_body("a", path)).status, 200);
  const struct {
    const char* route;
    std::string body;
    int status;
    const char* type;
    const char* message;
  } cases[] = {
      {kLoad, R"({"lora_name":"b"})", 400, "InvalidUserInput", "must be provided"},
      {kLoad, R"({"lora_path":"b"})", 400, "InvalidUserInput", "must be provided"},
      {kLoad, R"({"lora_name":1,"lora_path":"b"})", 400, "InvalidUserInput", "not a string"},
      {kLoad, "{", 400, "BadRequestError", "JSON"},
      {kLoad, load_body("a", path), 400, "InvalidUserInput", "already been loaded"},
      {kLoad, load_body("test-model", path), 400, "InvalidUserInput", "own name"},
      {kLoad, load_body("a,b", path), 400, "InvalidUserInput", "letters, digits"},
      {kLoad, load_body(std::string(200, 'x'), path), 400, "InvalidUserInput", "letters, digits"},
      {kLoad, load_body("b", "/nowhere/at/all"), 404, "NotFoundError", "no folder"},
      {kLoad, load_body("b", "org/some-adapter"), 404, "NotFoundError", "nothing is downloaded"},
      {kLoad, load_body("b", path + "/adapter_config.json"), 404, "NotFoundError", "no folder"},
      {kLoad, load_body("b", std::string("/tmp\0x", 6)), 400, "InvalidUserInput", "not a path"},
      {kLoad, load_body("b", empty.path().string()), 400, "BadRequestError", "adapter_config"},
      {kUnload, R"({})", 400, "InvalidUserInput", "lora_name"},
      {kUnload, R"({"lora_name":"none"})", 404, "NotFoundError", "cannot be found"},
      {kUnload, R"({"lora_name":"test-model"})", 404, "NotFoundError", "cannot be found"},
  };
  for (const auto& one : cases) {
    const TestResponse response = server.post(one.route, one.body);
    EXPECT_EQ(response.status, one.status) << one.body;
    EXPECT_EQ(error_type_of(response), one.type) << one.body;
    EXPECT_THAT(response.body, HasSubstr(one.message)) << one.body;
    EXPECT_EQ(response.body.find(empty.path().string()), std::string::npos);
  }
  // Replacing needs no further room, adding does.
  const auto before = registry.find("a")->weights;
  EXPECT_EQ(server.post(kLoad, load_body("a", path, true)).status, 200);
  EXPECT_NE(registry.find("a")->weights, before);
  EXPECT_EQ(server.post(kLoad, load_body("b", path, true)).status, 200);
  EXPECT_THAT(server.post(kLoad, load_body("c", path)).body, HasSubstr("--max-cpu-loras"));
}

TEST(Adapters, RoutesExistOnlyWhereAdaptersDoAndServeOnlyWhomTheyMay) {
  const Folder folder;
  const std::string body = load_body("a", adapter_folder(folder));
  TestServer without;
  const TestResponse absent = without.post(kLoad, body);
  EXPECT_EQ(absent.status, 404);
  EXPECT_THAT(absent.body, HasSubstr("--enable-lora"));
  EXPECT_EQ(without.post(kUnload, body).status, 404);

  AdapterRegistry registry(read_fake, 2);
  TestServerOptions closed = open_options(registry);
  closed.app.may_change_adapters = false;
  TestServer open_to_all(closed);
  EXPECT_EQ(open_to_all.post(kLoad, body).status, 403);
  EXPECT_EQ(open_to_all.post(kUnload, body).status, 403);

  TestServerOptions keyed = open_options(registry);
  keyed.app.keys = ApiKeys(std::vector<std::string>{"secret"});
  TestServer guarded(std::move(keyed));
  EXPECT_EQ(guarded.post(kLoad, body).status, 401);
  EXPECT_EQ(guarded.post(kLoad, body, "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(guarded.get(kLoad, "Authorization: Bearer secret\r\n").status, 405);
}

TEST(Adapters, ALoadHoldsUpNobodyAndIsSeenOnlyWhenItIsDone) {
  const Folder folder;
  std::promise<void> may_end;
  std::shared_future<void> end = may_end.get_future().share();
  std::atomic<int> num_begun = 0;
  AdapterRegistry registry(
      [&](const std::filesystem::path& path) {
        ++num_begun;
        end.wait();
        return read_fake(path);
      },
      4);
  TestServer server(open_options(registry));
  const std::string path = adapter_folder(folder);
  std::vector<std::future<TestResponse>> loads;
  for (const char* name : {"a", "b", "c"}) {
    loads.push_back(std::async(std::launch::async, [&server, name, &path] {
      return server.post(kLoad, load_body(name, path));
    }));
  }
  while (num_begun == 0) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(server.post(kChat, chat()).status, 200);
  EXPECT_EQ(Json::parse(server.get("/v1/models").body)["data"].size(), 2U);
  EXPECT_EQ(server.post(kChat, chat(R"("model":"a")")).status, 404);
  may_end.set_value();
  for (auto& load : loads) EXPECT_EQ(load.get().status, 200);
  EXPECT_EQ(registry.totals().num_adapters, 3);
  EXPECT_EQ(registry.totals().num_bytes, 3000);
}

TEST(Adapters, StoppingAnswersWhoWaits) {
  const Folder folder;
  const std::string path = adapter_folder(folder);
  std::promise<void> may_end;
  std::shared_future<void> end = may_end.get_future().share();
  std::promise<void> has_begun;
  AdapterRegistry registry(
      [&](const std::filesystem::path& folder_path) {
        has_begun.set_value();
        end.wait();
        return read_fake(folder_path);
      },
      4);
  TestServer server(open_options(registry));
  auto first =
      std::async(std::launch::async, [&] { return server.post(kLoad, load_body("a", path)); });
  has_begun.get_future().wait();
  auto second =
      std::async(std::launch::async, [&] { return server.post(kLoad, load_body("b", path)); });
  // The second one is refused whether it waits already or comes now.
  auto stopped = std::async(std::launch::async, [&] { server.app().stop_background(); });
  EXPECT_EQ(second.get().status, 503);
  may_end.set_value();
  EXPECT_EQ(first.get().status, 200);
  stopped.wait();
}

TEST(AdapterRegistry, WhatIsNoPlainFileIsNotRead) {
  const Folder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "adapter_config.json").c_str(), 0600), 0);
  AdapterRegistry registry(read_fake, 2);
  try {
    (void)registry.load({.name = "a", .path = folder.path().string()});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("not a plain file"));
  }
}

TEST(AdapterRegistry, AFailedLoadLeavesTheNameFree) {
  const Folder folder, empty;
  AdapterRegistry registry(read_fake, 1);
  EXPECT_THROW((void)registry.load({.name = "a", .path = empty.path().string()}), Error);
  EXPECT_EQ(registry.find("a"), nullptr);
  EXPECT_NO_THROW((void)registry.load({.name = "a", .path = adapter_folder(folder)}));
  // Nor does it take the place of what is there.
  const auto before = registry.find("a");
  EXPECT_THROW((void)registry.load({.name = "a", .path = empty.path().string(), .in_place = true}),
               Error);
  EXPECT_EQ(registry.find("a"), before);
  EXPECT_THROW(registry.set_model_names({"a"}), Error);
}

TEST(AdapterRegistry, WhoeverLetsGoLastDoesNotFree) {
  struct Watched final : ModelAdapter {
    explicit Watched(std::promise<std::thread::id>* freed_by) : freed(freed_by) {}
    ~Watched() override { freed->set_value(std::this_thread::get_id()); }
    std::int64_t num_bytes() const override { return 1; }
    std::uint64_t fingerprint() const override { return 1; }
    std::int32_t rank() const override { return 1; }
    std::promise<std::thread::id>* freed;
  };
  const Folder folder;
  std::promise<std::thread::id> freed[2];
  std::size_t next = 0;
  auto registry = std::make_unique<AdapterRegistry>(
      [&](const std::filesystem::path&) { return std::make_shared<Watched>(&freed[next++]); }, 2);
  const std::string path = adapter_folder(folder);
  auto used = registry->load({.name = "a", .path = path})->weights;
  registry->unload("a");
  used.reset();
  EXPECT_NE(freed[0].get_future().get(), std::this_thread::get_id());
  used = registry->load({.name = "b", .path = path})->weights;
  registry.reset();
  used.reset();  // nobody else is left
  EXPECT_EQ(freed[1].get_future().get(), std::this_thread::get_id());
}

TEST(Adapters, MetricsNameThoseWithRequests) {
  ServerMetrics metrics(
      {.model_name = "m", .max_model_len = 100, .cache_config = {}, .max_adapters = 3});
  EngineStats stats;
  stats.adapters = {{"a", {.num_running = 1}}, {"b", {.num_running = 2, .num_waiting = 1}}};
  const std::string text = metrics.text(stats, {}, {.num_adapters = 5, .num_bytes = 70});
  EXPECT_THAT(text, HasSubstr("running_lora_adapters=\"a,b\""));
  EXPECT_THAT(text, HasSubstr("waiting_lora_adapters=\"b\""));
  EXPECT_THAT(text, HasSubstr("max_lora=\"3\""));
  EXPECT_THAT(text, HasSubstr("winnow:lora_adapter_bytes{engine=\"0\",model_name=\"m\"} 70"));
  stats.adapters = {};
  const std::string later = metrics.text(stats);
  EXPECT_EQ(later.find("a,b"), std::string::npos);
  EXPECT_THAT(later, HasSubstr("running_lora_adapters=\"\""));
  ServerMetrics none({.model_name = "m", .max_model_len = 100, .cache_config = {}});
  EXPECT_EQ(none.text({}).find("lora"), std::string::npos);
}

}  // namespace
}  // namespace winnow::server::testing
