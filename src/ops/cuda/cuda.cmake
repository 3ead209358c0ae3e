# The CUDA side of winnow_ops. sm_90a is what wgmma and setmaxnreg need. Without CUDA only the two
# files that say so are built.
if(NOT WINNOW_CUDA)
  target_sources(winnow_ops PRIVATE cuda/device_absent.cpp cuda/backend_absent.cpp)
  return()
endif()

enable_language(CUDA)
# CMake 3.25 does not know that nvcc 13 speaks C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
find_package(CUDAToolkit 13.0 REQUIRED)

# Kernels and their launchers. No fmt or spdlog in there: nvcc 13 does not take their headers.
file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
list(FILTER cuda_kernels EXCLUDE REGEX "_bench\\.cu$|_test\\.cu$")
add_library(winnow_cuda_kernels OBJECT ${cuda_kernels})
set_target_properties(winnow_cuda_kernels PROPERTIES CUDA_ARCHITECTURES 90a CUDA_STANDARD 20)
target_include_directories(winnow_cuda_kernels PRIVATE ${CMAKE_SOURCE_DIR}/src)
# -fmad=false: the written reduction orders name every fused multiply-add themselves.
target_compile_options(winnow_cuda_kernels PRIVATE
  -fmad=false --expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra)
if(WINNOW_RACECHECK)
  target_compile_definitions(winnow_cuda_kernels PRIVATE WINNOW_RACECHECK)
endif()

file(GLOB_RECURSE cuda_hosts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*/cuda_*.cpp)
list(FILTER cuda_hosts EXCLUDE REGEX "_bench\\.cpp$|_test\\.cpp$")
target_sources(winnow_ops PRIVATE
  cuda/backend.cpp cuda/context.cpp cuda/device.cpp cuda/graphs.cpp cuda/memory.cpp cuda/page_locked.cpp ${cuda_hosts})
target_link_libraries(winnow_ops PUBLIC CUDA::cudart_static PRIVATE winnow_cuda_kernels)

# The kernels' own benchmarks check before they time, and need no other part of the build.
if(WINNOW_BENCHMARKS)
  file(GLOB_RECURSE cuda_benches CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_bench.cu)
  foreach(source ${cuda_benches})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES 90a CUDA_STANDARD 20)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false
      --expt-relaxed-constexpr>)
    target_link_libraries(${name} PRIVATE winnow_ops)
  endforeach()
endif()
