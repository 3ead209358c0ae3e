# One library per folder of src/, with the folders it may include listed as DEPS (the arrows of
# docs/architecture.md), plus its *_test.cpp and *_bench.cpp files.

add_library(winnow_flags INTERFACE)
# Reductions have a written order (numerics contract), so the compiler may not contract or reorder.
target_compile_options(winnow_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow;-Werror;-ffp-contract=off>")
target_include_directories(winnow_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(WINNOW_SANITIZE)
  target_compile_options(winnow_flags INTERFACE -fsanitize=${WINNOW_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer
    # GCC 12 warns of unset optionals, in Boost's headers too, that only its instrumented code has.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(winnow_flags INTERFACE -fsanitize=${WINNOW_SANITIZE})
endif()

# winnow_library(name SOURCES a.cpp … DEPS folder … LINK external … )
# Adds target winnow_<name>; every *_test.cpp below the folder becomes part of <name>_test, every
# *_bench.cpp part of <name>_bench.
function(winnow_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LINK" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND winnow_)
  add_library(winnow_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(winnow_${name} PUBLIC winnow_flags ${ARG_DEPS} ${ARG_LINK})

  if(WINNOW_TESTS)
    file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
    if(tests)
      winnow_test(${name}_test SOURCES ${tests} DEPS ${name})
    endif()
  endif()
  if(WINNOW_BENCHMARKS)
    file(GLOB_RECURSE benches CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_bench.cpp)
    if(benches)
      add_executable(${name}_bench ${benches})
      target_link_libraries(${name}_bench PRIVATE winnow_${name} benchmark::benchmark_main)
    endif()
  endif()
endfunction()

# winnow_test(name SOURCES a_test.cpp … DEPS folder …)
function(winnow_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND winnow_)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE WINNOW_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()
