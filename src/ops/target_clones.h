// The reference's inner loops are compiled twice, with and without FMA instructions, and the loader
// picks: fused multiply-add has the same bits either way, but in software it is a library call.
#pragma once

// Sanitizers instrument the function that picks, which runs before they are ready.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define WINNOW_FMA_CLONES [[gnu::target_clones("fma", "default")]]
#else
#define WINNOW_FMA_CLONES
#endif
