// Flags of `vllm serve` that have nothing to do here or that name what is not offered. Each is
// understood, so that a command line copied from a recipe says what differs instead of failing on a
// word. Source: spec/serving.md 1.2, 1.3.
#include "cli/engine_flags.h"

namespace winnow::cli {
namespace {

using Kind = FlagSet::Kind;

constexpr const char* kOwnKernels = "winnow has its own kernels and no captured graphs here";
constexpr const char* kOneProcess = "one process serves the model";
constexpr const char* kTextOnly = "this version serves text only";
constexpr const char* kLater = "not offered by this version";

}  // namespace

void add_foreign_engine_flags(FlagSet& set) {
  const struct {
    const char* name;
    Kind kind;
    const char* why;
  } kNoEffect[] = {
      {"trust-remote-code", Kind::kSwitch, "no code is loaded from checkpoints"},
      {"dtype", Kind::kValue, "weights are used as stored; computing is in fp32"},
      {"enforce-eager", Kind::kSwitch, kOwnKernels},
      {"compilation-config,O", Kind::kJson, kOwnKernels},
      {"max-cudagraph-capture-size", Kind::kValue, kOwnKernels},
      {"cuda-graph-sizes", Kind::kList, kOwnKernels},
      {"attention-backend", Kind::kValue, "attention has one implementation per machine"},
      {"enable-flashinfer-autotune", Kind::kSwitch, kOwnKernels},
      {"enable-cumem-allocator", Kind::kSwitch, "the KV pool is one allocation"},
      {"swap-space", Kind::kValue, "preempted sequences are recomputed, not swapped"},
      {"cpu-offload-gb", Kind::kValue, "the model is in host memory already"},
      {"distributed-executor-backend", Kind::kValue, kOneProcess},
      {"async-scheduling", Kind::kSwitch, "there is one step loop"},
      {"tokenizer-mode", Kind::kValue, "there is one tokenizer"},
      {"tokenizer-revision", Kind::kValue, "models are folders; nothing is downloaded"},
      {"revision", Kind::kValue, "models are folders; nothing is downloaded"},
      {"code-revision", Kind::kValue, "no code is loaded from checkpoints"},
      {"hf-token", Kind::kValue, "nothing is downloaded"},
      {"hf-config-path", Kind::kValue, "config.json of the model folder is read"},
      {"download-dir", Kind::kValue, "nothing is downloaded"},
      {"skip-tokenizer-init", Kind::kSwitch, "the tokenizer is always loaded"},
      {"disable-custom-all-reduce", Kind::kSwitch, "one rank reduces nothing"},
      {"disable-hybrid-kv-cache-manager", Kind::kSwitch,
       "one row per block for all layers is the only layout"},
      {"enable-chunked-prefill", Kind::kSwitch, "prompts are always cut into chunks"},
      {"max-num-partial-prefills", Kind::kValue, "chunks share a step by its token budget"},
      {"max-long-partial-prefills", Kind::kValue, "chunks share a step by its token budget"},
      {"prefix-caching-hash-algo", Kind::kValue, "there is one algorithm, keyed 128-bit XXH3"},
      {"calculate-kv-scales", Kind::kSwitch, "scales are computed per group when a row is written"},
      {"enable-expert-parallel", Kind::kSwitch, "one rank holds all experts"},
      {"enable-eplb", Kind::kSwitch, "one rank holds all experts"},
      {"all2all-backend", Kind::kValue, "one rank exchanges nothing"},
      {"api-server-count", Kind::kValue, kOneProcess},
      {"data-parallel-backend,dpb", Kind::kValue, kOneProcess},
      {"data-parallel-rank,dpn", Kind::kValue, kOneProcess},
      {"data-parallel-size-local,dpl", Kind::kValue, kOneProcess},
      {"data-parallel-start-rank,dpr", Kind::kValue, kOneProcess},
      {"data-parallel-address,dpa", Kind::kValue, kOneProcess},
      {"data-parallel-rpc-port,dpp", Kind::kValue, kOneProcess},
      {"nnodes", Kind::kValue, kOneProcess},
      {"node-rank", Kind::kValue, kOneProcess},
      {"master-addr", Kind::kValue, kOneProcess},
      {"master-port", Kind::kValue, kOneProcess},
      {"max-parallel-loading-workers", Kind::kValue, "weights are mapped, not read by workers"},
      {"safetensors-load-strategy", Kind::kValue, "weights are mapped"},
      {"safetensors-prefetch-block-size", Kind::kValue, "weights are mapped"},
      {"model-loader-extra-config", Kind::kJson, "weights are mapped"},
      {"language-model-only", Kind::kSwitch, kTextOnly},
      {"limit-mm-per-prompt", Kind::kJson, kTextOnly},
      {"media-io-kwargs", Kind::kJson, kTextOnly},
      {"mm-processor-kwargs", Kind::kJson, kTextOnly},
      {"mm-processor-cache-gb", Kind::kValue, kTextOnly},
      {"mm-encoder-tp-mode", Kind::kValue, kTextOnly},
      {"disable-mm-preprocessor-cache", Kind::kSwitch, kTextOnly},
      {"skip-mm-profiling", Kind::kSwitch, kTextOnly},
      {"allowed-local-media-path", Kind::kValue, kTextOnly},
      {"allowed-media-domains", Kind::kList, kTextOnly},
      {"trust-request-mm-kwargs", Kind::kSwitch, kTextOnly},
      {"disable-log-stats", Kind::kSwitch, "counters are at /metrics, not in the log"},
      {"collect-detailed-traces", Kind::kList, "counters are at /metrics"},
      {"runner", Kind::kValue, "the model generates text"},
      {"task", Kind::kValue, "the model generates text"},
      {"convert", Kind::kValue, "the model generates text"},
      {"override-attention-dtype", Kind::kValue, "attention is computed in fp32"},
      {"disable-cascade-attn", Kind::kSwitch, kOwnKernels},
      {"num-lookahead-slots", Kind::kValue, "blocks are taken as tokens need them"},
      {"guided-decoding-backend", Kind::kValue, "grammars are XGrammar's"},
      {"structured-outputs-config", Kind::kJson, "grammars are XGrammar's"},
  };
  for (const auto& flag : kNoEffect) set.add_no_effect(flag.name, flag.kind, flag.why);

  const struct {
    const char* name;
    Kind kind;
    const char* why;
    const char* harmless;
  } kRefused[] = {
      {"kv-transfer-config", Kind::kJson, kLater, ""},
      {"kv-events-config", Kind::kJson, kLater, ""},
      {"ec-transfer-config", Kind::kJson, kLater, ""},
      {"kv-offloading-size", Kind::kValue, kLater, "0"},
      {"kv-offloading-backend", Kind::kValue, kLater, ""},
      {"enable-sleep-mode", Kind::kSwitch, kLater, ""},
      {"enable-return-routed-experts", Kind::kSwitch, kLater, ""},
      {"weight-transfer-config", Kind::kJson, kLater, ""},
      {"enable-admin", Kind::kSwitch, kLater, ""},
      {"load-format", Kind::kValue, "only safetensors are read; dummy weights would say nothing",
       "auto|safetensors"},
      {"quantization,q", Kind::kValue,
       "the checkpoint's tensors say how weights are stored; use `winnow quantize` to convert",
       "modelopt|modelopt_fp4|mxfp8"},
      {"hf-overrides", Kind::kJson, "edit config.json of the model folder", ""},
      {"headless", Kind::kSwitch, kLater, ""},
  };
  for (const auto& flag : kRefused) {
    set.add_refused(flag.name, flag.kind, flag.why, flag.harmless);
  }
}

void add_foreign_server_flags(FlagSet& set) {
  const struct {
    const char* name;
    Kind kind;
    const char* why;
  } kNoEffect[] = {
      {"chat-template-content-format", Kind::kValue,
       "content parts are joined to text before the template sees them"},
      {"disable-frontend-multiprocessing", Kind::kSwitch, kOneProcess},
      {"disable-fastapi-docs", Kind::kSwitch, "there are no such pages"},
      {"enable-log-requests", Kind::kSwitch,
       "prompts are not logged; the access log has method, path and status"},
      {"enable-log-outputs", Kind::kSwitch, "answers are not logged"},
      {"enable-log-deltas", Kind::kSwitch, "answers are not logged"},
      {"max-log-len", Kind::kValue, "prompts are not logged"},
      {"h11-max-incomplete-event-size", Kind::kValue,
       "limits are --max-body-bytes and --max-header-bytes"},
      {"h11-max-header-count", Kind::kValue, "limits are --max-body-bytes and --max-header-bytes"},
      {"enable-server-load-tracking", Kind::kSwitch, "/load always counts"},
      {"disable-access-log-for-endpoints", Kind::kValue, "probes are never logged"},
      {"show-hidden-metrics-for-version", Kind::kValue, "no metric is hidden"},
      {"log-config-file", Kind::kValue, "use --log-level"},
      {"ssl-cert-reqs", Kind::kValue, "there is no TLS here"},
      {"enable-ssl-refresh", Kind::kSwitch, "there is no TLS here"},
      {"exclude-tools-when-tool-choice-none", Kind::kSwitch,
       "tools stay in the prompt with tool_choice none"},
  };
  for (const auto& flag : kNoEffect) set.add_no_effect(flag.name, flag.kind, flag.why);

  constexpr const char* kNoTls = "TLS is left to a proxy in front (nginx, Caddy)";
  set.add_refused("ssl-keyfile", Kind::kValue, kNoTls);
  set.add_refused("ssl-certfile", Kind::kValue, kNoTls);
  set.add_refused("ssl-ca-certs", Kind::kValue, kNoTls);
  set.add_refused("middleware", Kind::kList, "no Python code is loaded");
  set.add_refused("tool-parser-plugin", Kind::kValue, "no Python code is loaded");
  set.add_refused("reasoning-parser-plugin", Kind::kValue, "no Python code is loaded");
  set.add_refused("logits-processors", Kind::kList, "no Python code is loaded");
  set.add_refused("logits-processor-pattern", Kind::kValue, "no Python code is loaded");
  set.add_refused("otlp-traces-endpoint", Kind::kValue, "traces are not sent anywhere");
  set.add_refused("enable-tokenizer-info-endpoint", Kind::kSwitch, kLater);
  set.add_refused("enable-prompt-embeds", Kind::kSwitch, kLater);
  set.add_refused("tool-server", Kind::kValue, kLater);
}

}  // namespace winnow::cli
