// Device memory as ops::Memory.
#pragma once

#include <memory>
#include <mutex>

#include "ops/memory.h"

struct CUstream_st;

namespace winnow::cuda {

/// A stream that goes with its last owner: what frees device memory waits for it first.
using SharedStream = std::shared_ptr<CUstream_st>;
SharedStream make_stream(int device);

/// Held while a stream records what it is given: whatever another thread submits then would be
/// recorded too, and whatever waits for the stream would end the recording. A recording step itself
/// may copy.
using SharedLock = std::shared_ptr<std::recursive_mutex>;

/// Copies are ordered with `stream` and wait while it records (`recording`). Small arrays are
/// carved from slabs of 64 MiB, because the driver hands memory out in pieces of 2 MiB.
/// Thread-safe.
std::shared_ptr<ops::Memory> make_device_memory(int device, SharedStream stream,
                                                SharedLock recording);

/// Host memory that the device reads and writes at the same addresses. Its copies are the host's
/// own and wait for nothing. Thread-safe.
std::shared_ptr<ops::Memory> make_page_locked_memory(int device);

}  // namespace winnow::cuda
