// The verbs. Each takes the words after its name and returns the exit code; errors are thrown.
#pragma once

#include <string>
#include <vector>

namespace winnow::cli {

using Words = std::vector<std::string>;

int run_serve(const Words& words);
int run_chat(const Words& words);
int run_generate(const Words& words);
int run_capture(const Words& words);
int run_bench(const Words& words);
int run_bench_kernels(const Words& words);    // of run_bench
int run_bench_serve(const Words& words);      // of run_bench
int run_bench_synthetic(const Words& words);  // of run_bench

/// The whole program: picks the verb, turns errors into one line on stderr and an exit code
/// (2: the command line, 1: anything else).
int run(int argc, char** argv);

}  // namespace winnow::cli
