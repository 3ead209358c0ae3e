# The CPU kernels, compiled once per instruction set into namespaces of their own (ops/x86/isa.h).
set(kernel_sources
  x86/kernel_table.cpp x86/memory_kernel.cpp
  attention/cpu_kernel.cpp index_topk/cpu_kernel.cpp linear/cpu_kernel.cpp
  mlp/cpu_kernel.cpp rms_norm/cpu_kernel.cpp)

function(winnow_cpu_kernels isa define)
  add_library(winnow_ops_kernels_${isa} OBJECT ${kernel_sources})
  target_link_libraries(winnow_ops_kernels_${isa} PRIVATE winnow_flags)
  target_compile_definitions(winnow_ops_kernels_${isa} PRIVATE ${define})
  if(WINNOW_SANITIZE)
    target_compile_definitions(winnow_ops_kernels_${isa} PRIVATE WINNOW_KEEP_LOOPS)
    target_compile_options(winnow_ops_kernels_${isa} PRIVATE -O1 ${ARGN})
  else()
    target_compile_options(winnow_ops_kernels_${isa} PRIVATE -O3 ${ARGN})
  endif()
  target_link_libraries(winnow_ops PRIVATE winnow_ops_kernels_${isa})
  if(WINNOW_TESTS AND NOT WINNOW_SANITIZE)
    add_test(NAME kernel_symbols_${isa}
      COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM}
        "-DOBJECTS=$<JOIN:$<TARGET_OBJECTS:winnow_ops_kernels_${isa}>,,>"
        -P ${CMAKE_CURRENT_SOURCE_DIR}/x86/kernel_symbols_test.cmake)
  endif()
endfunction()

winnow_cpu_kernels(portable WINNOW_ISA_PORTABLE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  winnow_cpu_kernels(avx2 WINNOW_ISA_AVX2 -mavx2 -mfma -mf16c)
  # GCC 12's own AVX-512 headers start their results from an undefined register and warn of it.
  winnow_cpu_kernels(avx512 WINNOW_ISA_AVX512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl
    -mavx512dq -mavx512vbmi -mprefer-vector-width=512 -Wno-uninitialized
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_definitions(winnow_ops PRIVATE WINNOW_HAS_X86_KERNELS)
endif()
