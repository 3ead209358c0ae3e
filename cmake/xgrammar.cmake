# XGrammar's C++ core as the static library `xgrammar`, without its Python binding. Its own
# CMakeLists.txt sets flags for all of a build (-flto, -O3, -Werror), so its sources are listed here.
set(WINNOW_XGRAMMAR ${CMAKE_SOURCE_DIR}/.cache/xgrammar CACHE PATH "Unpacked XGrammar source package")
if(WINNOW_XGRAMMAR STREQUAL "${CMAKE_SOURCE_DIR}/.cache/xgrammar")
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/fetch_xgrammar.sh RESULT_VARIABLE fetched)
  if(NOT fetched EQUAL 0)
    message(FATAL_ERROR "XGrammar's source package is missing: see scripts/fetch_xgrammar.sh")
  endif()
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/xgrammar-requirements.txt)

file(GLOB_RECURSE sources ${WINNOW_XGRAMMAR}/cpp/*.cc)
list(FILTER sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC ${sources} ${CMAKE_SOURCE_DIR}/src/grammar/xgrammar_log.cpp)
target_include_directories(xgrammar SYSTEM PUBLIC
  ${WINNOW_XGRAMMAR}/include ${WINNOW_XGRAMMAR}/3rdparty/dlpack/include)
target_include_directories(xgrammar SYSTEM PRIVATE
  ${WINNOW_XGRAMMAR}/cpp ${WINNOW_XGRAMMAR}/3rdparty/picojson)
# What it reports goes to our log (src/grammar/xgrammar_log.cpp).
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0
  XGRAMMAR_ENABLE_INTERNAL_CHECK=0 XGRAMMAR_LOG_CUSTOMIZE=1)
target_compile_options(xgrammar PRIVATE -w)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # The standard it is written for. Under C++20 clang 14 wants types whole where it has vectors of them.
  set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17)
endif()
if(WINNOW_SANITIZE)
  target_compile_options(xgrammar PRIVATE -fsanitize=${WINNOW_SANITIZE} -fno-omit-frame-pointer)
endif()
target_link_libraries(xgrammar PUBLIC Threads::Threads)
