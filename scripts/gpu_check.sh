#!/usr/bin/env bash
# What a CUDA machine shows before a change to device code counts as done: the operations against
# the scalar reference, golden checkpoints, equality of batched and lone requests, the sanitizers, and
# the speed of the kernels beside their peers. Prints one table last; exits 1 when anything failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

usage() {
  cat <<'TEXT'
usage: ./dev gpu [--bin DIR] [--quick] [--only SECTION]... [--vllm-ops DIR] [--output DIR]

  --bin DIR       programs built elsewhere, with ops_test of the preset cuda-racecheck in
                  DIR-racecheck; default: builds both
  --quick         without the sanitizers and the benchmarks
  --only SECTION  of ops, kernels, golden, equality, sanitizer, bench, peers; may be repeated
  --vllm-ops DIR  index_topk.py and sparse_attn.py of the vllm wheel, see bench/peers/hopper.py
  --output DIR    logs and figures; default: build/gpu-check
TEXT
}

bin='' vllm_ops='' output=build/gpu-check sections=()
all_sections=(ops kernels golden equality sanitizer bench peers)
quick_sections=(ops kernels golden equality)
while [ $# -gt 0 ]; do
  case "$1" in
    --bin) bin=${2:?--bin needs a folder}; shift ;;
    --vllm-ops) vllm_ops=${2:?--vllm-ops needs a folder}; shift ;;
    --output) output=${2:?--output needs a folder}; shift ;;
    --only) sections+=("${2:?--only needs a section}"); shift ;;
    --quick) [ "${#sections[@]}" -gt 0 ] || sections=("${quick_sections[@]}") ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[ "${#sections[@]}" -gt 0 ] || sections=("${all_sections[@]}")
for section in "${sections[@]}"; do
  [[ " ${all_sections[*]} " == *" $section "* ]] || { usage >&2; exit 2; }
done
nvidia-smi -L 2>/dev/null | grep -q GPU || { echo 'gpu: this machine shows no NVIDIA GPU' >&2; exit 1; }
mkdir -p "$output"

rows=() num_failed=0
runner=()  # what a test program runs under
max_shards=$(($(nproc) < 8 ? $(nproc) : 8))

# add_row SECTION CASE STATUS FIGURE; STATUS is an exit code, or - for what could not run.
add_row() {
  local verdict
  case "$3" in
    0) verdict=passed ;;
    -) verdict='not run' ;;
    124) verdict='TIMED OUT'; num_failed=$((num_failed + 1)) ;;
    *) verdict=FAILED; num_failed=$((num_failed + 1)) ;;
  esac
  rows+=("$(printf '%-10s %-34s %-9s %s' "$1" "$2" "$verdict" "$4")")
  printf '%s\n' "${rows[-1]}" >&2
}

log_of() { printf '%s/%s.log' "$output" "$(tr -c 'a-zA-Z0-9\n' '-' <<<"$*")"; }

# Figures out of logs.
gtest_figure() {
  local passed failed errors
  errors=$(grep -oE 'SUMMARY: [0-9]+' "$1" | awk '{n += $2} END {if (NR) print n}')
  passed=$(grep -c '^\[       OK ' "$1")
  failed=$(grep -E '^\[  FAILED  \] [^ ]+\.[^ ]+' "$1" | awk '{print $4}' | sort -u)
  printf '%s tests%s%s' "$passed" "${errors:+, $errors errors}" "${failed:+, failed: $(tr '\n' ' ' <<<"$failed" | cut -c1-150)}"
}
last_line() { grep -v '^$' "$1" | tail -1 | cut -c1-100; }

# run_gtest SECTION NAME SECONDS PROGRAM [FLAGS]: fails too when no test ran. The scalar reference
# takes most of the time, so the tests are dealt out to processes.
run_gtest() {
  local section=$1 name=$2 seconds=$3 program=$4 log status=0 shard num_tests pid pids=()
  shift 4
  log=$(log_of "$section" "$name")
  if [ ! -x "$bin/$program" ]; then add_row "$section" "$name" 1 "no $bin/$program"; return; fi
  # A process without a test never calls the device, which compute-sanitizer takes for a failure.
  num_tests=$("$bin/$program" --gtest_list_tests "$@" | grep -c '^  ')
  local num_shards=$((num_tests < max_shards ? num_tests : max_shards))
  for ((shard = 0; shard < num_shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$num_shards GTEST_SHARD_INDEX=$shard \
      timeout "$seconds" "${runner[@]}" "$bin/$program" "$@" >"$log.$shard" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
  for ((shard = 0; shard < num_shards; ++shard)); do cat "$log.$shard"; done >"$log"
  rm -f "$log".[0-9]*
  [ "$status" -ne 0 ] || grep -q '^\[       OK ' "$log" || status=1
  add_row "$section" "$name" "$status" "$(gtest_figure "$log")"
}

check_ops() {
  WINNOW_TEST_BACKEND=cuda-exact run_gtest ops 'cuda-exact = scalar' 600 ops_test \
    --gtest_filter='Embed.*:RmsNorm.*:Linear.*:Lora.*:Mlp.*:Moe.*:QkvInsert.*:IndexTopk.*:Attention.*'
  run_gtest ops 'cuda near scalar' 600 ops_test --gtest_filter='*CudaFast*'
}

kernel_benches() { find "$bin" -maxdepth 1 -name 'cuda_*_bench' -perm -u+x | sort; }

check_kernels() {
  local bench name status
  for bench in $(kernel_benches); do
    name=$(basename "$bench" _bench) status=0
    timeout 120 "$bench" check >"$(log_of kernels "$name")" 2>&1 || status=$?
    add_row kernels "$name" "$status" "$(last_line "$(log_of kernels "$name")")"
  done
}

# Golden outputs were made without quantised caches: with fp32 caches cuda-exact must match them, and
# with any cache dtype the device must match the CPU as scripts/compare_checks.py says. A prompt cut
# into chunks must give the report of the whole one. The drafters' golden outputs are unit tests'.
check_golden() {
  local model dtype cases=() pids=()
  WINNOW_TEST_BACKEND=cuda-exact run_gtest golden 'drafters, cuda-exact' 300 model_test \
    --gtest_filter='*DsparkDrafter*'
  run_gtest golden 'adapters, cuda-exact' 300 golden_test --gtest_filter='*NanoLora*cuda_exact*'
  for model in nano-text m3-heads winnow-tiny; do
    [ -f "$(model_folder "$model")/config.json" ] ||
      { add_row golden "$model" 1 "no $(model_folder "$model")"; continue; }
    for dtype in fp32 bf16 fp8 nvfp4 nvfp4/e4m3; do
      check_golden_case "$model" "$dtype" &
      pids+=($!) cases+=("$model $dtype")
      [ "${#pids[@]}" -lt 4 ] || finish_golden_cases
    done
  done
  finish_golden_cases
}

# Waits for the cases under way and reports them; their files' lines are "backend status figure".
finish_golden_cases() {
  local name backend status figure
  [ "${#pids[@]}" -eq 0 ] || wait "${pids[@]}"
  for name in "${cases[@]}"; do
    while read -r backend status figure; do
      add_row golden "$name $backend" "$status" "$figure"
    done <"$(log_of golden "$name" verdicts)"
  done
  pids=() cases=()
}

model_folder() {
  if [ "$1" = winnow-tiny ]; then echo models/winnow-tiny; else echo "tests/golden/$1"; fi
}

# check_golden_case MODEL DTYPE: on the CPU and both sets of kernels.
check_golden_case() {
  local model=$1 dtype=$2 name mode status log figure options
  options=(--golden "tests/golden/$model/golden.safetensors" --kv-cache-dtype "${dtype%/*}")
  [ "$dtype" != nvfp4/e4m3 ] || options+=(--dequant e4m3)
  [ "$dtype" != nvfp4 ] || options+=(--dequant exact)
  local check=(timeout 300 "$bin/winnow" check "$(model_folder "$model")" "${options[@]}" --backend)
  "${check[@]}" cpu >"$(log_of golden "$model" "$dtype" cpu)" 2>&1
  for name in cuda-exact cuda; do
    log=$(log_of golden "$model" "$dtype" "$name") status=0 mode=near
    [ "$name" != cuda-exact ] || mode=exact
    "${check[@]}" "$name" >"$log" 2>&1
    figure=$(python3 scripts/compare_checks.py "$mode" \
      "$(log_of golden "$model" "$dtype" cpu)" "$log") || status=1
    if [ "$status" -eq 0 ] && [ "$name $dtype" = 'cuda-exact fp32' ]; then
      grep -q '^passed' "$log" || { status=1; figure='not the golden outputs'; }
    fi
    if [ "$status" -eq 0 ]; then
      "${check[@]}" "$name" --chunk-tokens 100 >"${log%.log}-chunks.log" 2>&1
      figure=$(python3 scripts/compare_checks.py exact "$log" "${log%.log}-chunks.log") ||
        { status=1; figure="in chunks of 100: $figure"; }
    fi
    printf '%s %s %s\n' "$name" "$status" "$figure"
  done >"$(log_of golden "$model" "$dtype" verdicts)"
}

check_equality() {
  local backend
  run_gtest equality 'sampler, cuda' 600 device_sample_test
  for backend in cuda-exact cuda; do
    WINNOW_TEST_BACKEND=$backend run_gtest equality "decoder, $backend" 600 equality_test \
      --gtest_filter='-*FourGigabytes*'
    WINNOW_TEST_BACKEND=$backend run_gtest equality "engine, $backend" 600 \
      engine_decoder_equality_test
  done
}

# Small cases: the tools slow a kernel down a hundredfold. racecheck has a build of its own, which
# publishes shared memory in the way that it follows (kRacecheck in src/ops/cuda/ptx.cuh).
check_sanitizer() {
  local tool ordinary=$bin
  for tool in memcheck racecheck; do
    [ "$tool" = memcheck ] || bin=$bin_racecheck
    runner=(compute-sanitizer --tool "$tool" --error-exitcode 9)
    WINNOW_TEST_BACKEND=cuda-exact run_gtest sanitizer "$tool cuda-exact" 900 ops_test \
      --gtest_filter='Embed.*:RmsNorm.*:Linear.ARow*:Lora.AStepOf*:Mlp.Unusual*:Moe.EqualScores*:QkvInsert.Every*:IndexTopk.EveryBlockCount*:IndexTopk.NaN*:Attention.AFew*'
    run_gtest sanitizer "$tool cuda" 900 ops_test \
      --gtest_filter='CudaFastRms*:CudaFastMlp.*:CudaFastMoe.*:CudaFastLora.*:CudaFastQkv*:*CudaFast*nvfp4_e4m3'
    runner=()
  done
  bin=$ordinary
}

run_benches() {
  local bench name status log
  : >"$output/winnow.csv"
  for bench in $(kernel_benches); do
    name=$(basename "$bench" _bench) status=0 log=$(log_of bench "$name")
    timeout 120 "$bench" time >"$log" 2>&1 || status=$?
    tee -a "$output/winnow.csv" <"$log"
    add_row bench "$name" "$status" "$(last_line "$log")"
  done
  status=0 log=$(log_of bench steps)
  timeout 300 "$bin/winnow" bench latency --synthetic-weights --output-json "$output/steps.json" \
    >"$log" 2>&1 || status=$?
  cat "$log"
  add_row bench 'steps at real shapes' "$status" "$(last_line "$log")"
}

run_peers() {
  local status=0 log file winnow=() arguments=(--output "$output/peers.json")
  log=$(log_of peers)
  python3 -c 'import torch, triton' 2>/dev/null ||
    { add_row peers hopper.py - 'python3 has no torch and triton'; return; }
  [ -z "$vllm_ops" ] || arguments+=(--vllm-ops "$vllm_ops")
  for file in "$output/winnow.csv" "$output/steps.json"; do [ ! -s "$file" ] || winnow+=("$file"); done
  [ "${#winnow[@]}" -eq 0 ] || arguments+=(--winnow "${winnow[@]}")
  timeout 300 python3 bench/peers/hopper.py "${arguments[@]}" 2>&1 | tee "$log" || status=1
  add_row peers hopper.py "$status" "$(last_line "$log")"
}

if [ -z "$bin" ]; then
  ./dev build cuda || exit 1
  bin=build/cuda/bin bin_racecheck=build/cuda-racecheck/bin
  if [[ " ${sections[*]} " == *' sanitizer '* ]]; then
    ./dev build cuda-racecheck ops_test || exit 1
  fi
else
  bin_racecheck=$bin-racecheck
fi
for section in "${sections[@]}"; do
  case "$section" in
    ops) check_ops ;;
    kernels) check_kernels ;;
    golden) check_golden ;;
    equality) check_equality ;;
    sanitizer) check_sanitizer ;;
    bench) run_benches ;;
    peers) run_peers ;;
  esac
done 2>"$output/progress.txt"

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
date -u '+%Y-%m-%d %H:%M UTC'
printf '%-10s %-34s %-9s %s\n' section case result figure
printf '%s\n' "${rows[@]}"
printf '%s rows, %s failed\n' "${#rows[@]}" "$num_failed"
[ "$num_failed" -eq 0 ]
