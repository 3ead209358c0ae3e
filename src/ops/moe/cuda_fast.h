// The pieces of the fast MoE between its files: what a layer is, the scratch its kernels share, and
// the launchers. Everything here is a device pointer or a count; nothing waits.
//
// Numerics. The router's logits and the choice are the reference's own (moe.h), bit for bit. Expert
// matrices multiply bf16 inputs in the tensor cores with fp32 sums: the columns of a row are dealt
// out to kNumSegments segments in pieces of whole 64-column chunks (num_pieces()); a segment's
// products are summed in the order of the matrix instructions from 0, the segments' sums are added
// in ascending order from 0. mma.sync.m16n8k16 and wgmma's k16 forms give the same bits, so a
// token's result does not depend on the number of tokens. Activations between the two products are
// rounded to bf16.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/linear/cuda_matrix.h"
#include "ops/moe/cuda_experts.h"

namespace winnow::cuda::fast_moe {

inline constexpr int kNumSegments = 4;
inline constexpr int kMaxExperts = 256;  // a thread of the choosing kernel each
inline constexpr int kMaxTopK = 8;
inline constexpr int kMaxDecodeTokens = 256;  // above, prefill's tiles are full enough
inline constexpr int kBlockTokens = 32;       // tokens of one expert that share a pass over it

/// Tokens stand in columns of the matrix instruction, eight at a time.
constexpr int num_groups(int num_tokens) { return (num_tokens + 7) / 8; }

/// Piece p of a row, kPieceChunks chunks but for the last, belongs to segment p % kNumSegments: the
/// warps that share a row then read neighbouring bytes at about the same time.
inline constexpr int kPieceChunks = 3;

constexpr int num_pieces(int num_chunks) { return (num_chunks + kPieceChunks - 1) / kPieceChunks; }

/// One layer and its inputs. Sizes are multiples of 64; experts are NVFP4 or MXFP8 that fits bf16,
/// gate and up alike.
struct Layer {
  const float* h = nullptr;  // [num_tokens][hidden]
  int num_tokens = 0;
  const std::byte* router = nullptr;  // F32 chunks, num_experts rows
  const float* router_bias = nullptr;
  const DeviceMlp* experts = nullptr;  // routed by id, then the shared one
  int num_experts = 0;
  int hidden = 0;
  int width = 0;
  int shared_width = 0;  // 0: none
  int top_k = 0;
  float routed_scale = 1.0F;
  float alpha = 0.0F;
  float limit = 0.0F;
  float* y = nullptr;                      // [num_tokens][hidden], added to
  std::int32_t* chosen_experts = nullptr;  // may be null
  float* chosen_weights = nullptr;         // may be null

  constexpr bool has_shared() const { return shared_width > 0; }
  constexpr int num_pairs() const { return num_tokens * top_k; }
  /// Rows of the activations: (token, choice) pairs by expert, then every token for the shared one.
  constexpr int num_slots() const { return num_pairs() + (has_shared() ? num_tokens : 0); }
  /// With each expert's rows padded to a multiple of eight, as prefill lays them out.
  constexpr int max_slots() const { return (num_slots() + 8 * (num_experts + 1)) / 8 * 8; }
  constexpr int max_width() const { return width > shared_width ? width : shared_width; }
};

/// Up to kBlockTokens tokens of one expert.
struct ActiveExpert {
  const std::byte* gate = nullptr;
  const std::byte* up = nullptr;
  const std::byte* down = nullptr;
  float gate_scale = 1.0F;  // of finished sums
  float up_scale = 1.0F;
  float down_scale = 1.0F;
  std::int32_t first_slot = 0;
  std::int32_t num_tokens = 0;
  std::int32_t width = 0;
  QuantScheme gate_up_scheme = QuantScheme::kNvfp4;
  QuantScheme down_scheme = QuantScheme::kNvfp4;
};

/// A place in the list of work: tile pair `row` of active expert `entry`.
struct WorkPlace {
  std::int32_t entry;
  std::int32_t row;
};

/// Scratch of one call.
struct Workspace {
  float* partial_logits = nullptr;     // [hidden / 32][num_tokens][num_experts]
  std::int32_t* chosen = nullptr;      // [num_tokens][top_k]
  float* weights = nullptr;            // [num_tokens][top_k]
  std::int32_t* slot_of = nullptr;     // [num_tokens][top_k]
  std::int32_t* token_of = nullptr;    // [num_slots]
  ActiveExpert* active = nullptr;      // [max_active()]
  std::int32_t* num_active = nullptr;  // [2]: entries; for decode, groups of eight tokens in them
  std::byte* inputs = nullptr;         // bf16 [num_tokens][hidden]; for decode as operand_index()
  std::byte* activations = nullptr;    // bf16 [num_slots][max_width], likewise
  float* outputs = nullptr;            // [num_slots][hidden]; prefill: output_row()
  std::uint32_t* counters = nullptr;   // zero before and after
  // Prefill only. Rows that wgmma reads lie as it wants them in shared memory, so that a tile's
  // columns are one copy: [chunk][slot, max_slots()][64 bf16], 16-byte piece p of slot s at p ^ s
  // % 8. token_of is -1 for a slot that only pads.
  std::byte* gathered = nullptr;        // the inputs by slot; activations have the same form
  std::int32_t* counts = nullptr;       // [num_experts] tokens of each
  WorkPlace* tiles = nullptr;           // [2][max_tiles()] in the order of work
  std::int32_t* num_tiles = nullptr;    // [2]
  std::int32_t* shared_slot = nullptr;  // of the first token

  static constexpr int kRouteTicket = 0;
  static constexpr int kExitTicket = 1;
  static constexpr int kQueue = 2;     // the next item
  static constexpr int kInputs = 3;    // blocks that have rounded their inputs
  static constexpr int kEntries = 64;  // one counter per active expert
  static constexpr int kRows = 4096;   // one per 32 rows of y
};

/// Entries of Workspace::active: an expert whose tokens need several blocks has several.
constexpr int max_active(const Layer& layer) {
  return layer.num_experts + 1 + (layer.num_slots() + kBlockTokens - 1) / kBlockTokens;
}

/// Tokens that share a pass over the router.
inline constexpr int kRouteTokens = 8;

/// Blocks of the router's product for few tokens, each of which rounds inputs.
constexpr int num_route_blocks(const Layer& layer) {
  return layer.hidden / 64 * ((layer.num_tokens + kRouteTokens - 1) / kRouteTokens);
}

/// Tokens of one expert that a prefill tile takes at most; rows of activations and of y.
inline constexpr int kPrefillTokens = 128;
inline constexpr int kPrefillWidth = 128;
inline constexpr int kPrefillHidden = 256;

/// Prefill's outputs lie as the matrix instructions leave them, so that a warp writes whole lines:
/// of each 128 rows, floats 4i to 4i + 3 are row output_row(4i) and those 8, 64 and 72 after it.
inline constexpr int kOutputRows = 128;
__host__ __device__ constexpr int output_row(int column) {
  return column / kOutputRows * kOutputRows + column % kOutputRows / 32 * 16 + column % 32 / 4;
}
/// Floats of a slot's outputs.
__host__ __device__ constexpr std::int64_t output_columns(const Layer& layer) {
  return (layer.hidden + kOutputRows - 1) / kOutputRows * kOutputRows;
}

/// Up to so many tokens the router's columns are spread over blocks; more fill the device by
/// themselves.
inline constexpr int kMaxSpreadTokens = 1024;

constexpr bool is_decode(const Layer& layer) { return layer.num_tokens <= kMaxDecodeTokens; }

/// Entries of a row of Workspace::tiles.
constexpr int max_tiles(const Layer& layer) {
  const int entries = layer.num_experts + 1 + layer.num_slots() / kPrefillTokens + 1;
  const int rows = (layer.max_width() + kPrefillWidth - 1) / kPrefillWidth;
  const int hidden_rows = (layer.hidden + kPrefillHidden - 1) / kPrefillHidden;
  return entries * (rows > hidden_rows ? rows : hidden_rows);
}

/// B operands hold a chunk of 64 columns of one token as 128 bytes: [steps 0 and 1, 2 and 3][c]
/// [step's parity][columns 2c, 2c+1, 2c+8, 2c+9], so that a lane's two 16-byte loads are its
/// registers of four steps. Index of column k in a row of bf16.
__host__ __device__ constexpr int operand_index(int k) {
  const int step = k % 64 / 16;
  const int col = k % 16;
  return k / 64 * 64 + step / 2 * 32 + col % 8 / 2 * 8 + step % 2 * 4 + col / 8 * 2 + col % 2;
}

/// The shared expert's entries of Workspace::active, which come first in decode.
constexpr int num_shared_entries(const Layer& layer) {
  return layer.has_shared() ? (layer.num_tokens + kBlockTokens - 1) / kBlockTokens : 0;
}

/// Logits, choice, and for up to kMaxDecodeTokens tokens the list of work for decode.
void route(const Layer& layer, const Workspace& work, cudaStream_t stream);

/// Logits and choice for many tokens; inputs in the order of their columns.
void route_prefill(const Layer& layer, const Workspace& work, cudaStream_t stream);

/// Sorts the tokens by expert, lists the tiles, and gathers the inputs.
void sort_prefill(const Layer& layer, const Workspace& work, cudaStream_t stream);

/// Both products, SwiGLU and the weighted sum by large tiles. NVFP4 and MXFP8.
void prefill(const Layer& layer, const Workspace& work, int num_multiprocessors,
             cudaStream_t stream);

/// Both products, SwiGLU and the weighted sum, in one launch.
void decode(const Layer& layer, const Workspace& work, int num_multiprocessors,
            cudaStream_t stream);

/// The whole layer.
inline void run(const Layer& layer, const Workspace& work, int num_multiprocessors,
                cudaStream_t stream) {
  if (is_decode(layer)) {
    route(layer, work, stream);
    decode(layer, work, num_multiprocessors, stream);
  } else {
    route_prefill(layer, work, stream);
    sort_prefill(layer, work, stream);
    prefill(layer, work, num_multiprocessors, stream);
  }
}

}  // namespace winnow::cuda::fast_moe
