#!/bin/bash
# Octet inside the build of another project, by add_subdirectory: shared, beside targets and settings that
# might get into its way; and static, installed by the project around it.
set -eu
. "$(dirname "$0")/consumer_rig.sh"

# The project around it has flags, targets and tests of its own; nothing of them meets those of Octet. What
# is new in its cache belongs to Octet, its libraries, or modules of CMake.
by_cmake "$tmp/shared" "
include(CTest)
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_C_STANDARD 90)
set(CMAKE_C_FLAGS \"-ffast-math -Wconversion\")
add_custom_target(octet)
add_custom_target(lint)
get_cmake_property(before CACHE_VARIABLES)
add_subdirectory($source octet)
get_cmake_property(after CACHE_VARIABLES)
list(REMOVE_ITEM after \${before} before)
list(FILTER after EXCLUDE REGEX
  [[^(octet_|OCTET_|HWLOC_|XXHASH_|SENTENCEPIECE_|JANSSON_|PKG_CONFIG_|pkgcfg_|prefix_result|CMAKE_|_|FIND)]])
if(after)
  message(FATAL_ERROR \"set in the project around it: \${after}\")
endif()
get_target_property(options octet::octet INTERFACE_COMPILE_OPTIONS)
if(options)
  message(FATAL_ERROR \"options for those who link: \${options}\")
endif()
set(CMAKE_C_STANDARD 11)
set(CMAKE_UNITY_BUILD OFF)
set(CMAKE_C_FLAGS)"
(cd "$tmp/shared/build" && ctest -N) | grep -q 'Total Tests: 0' || fail "tests in the project around it"
[ -z "$(find "$tmp/shared/build" -path '*/examples/*.o')" ] || fail "more than the library was built"

by_cmake "$tmp/static" "add_subdirectory($source octet)" -DCMAKE_BUILD_TYPE=Release \
    -DOCTET_CUDA=OFF -DBUILD_SHARED_LIBS=OFF -DOCTET_INSTALL=ON
quiet cmake --install "$tmp/static/build" --prefix "$tmp/prefix"
by_pkg_config "$tmp/static-pkg-config" "$tmp/prefix"
by_cmake "$tmp/static-find" "find_package(octet REQUIRED)" -DCMAKE_PREFIX_PATH="$tmp/prefix"
echo "cmake_minimum_required(VERSION 3.16)
project(only C) # the library has C++ in it
find_package(octet REQUIRED)
add_executable(embed embed.c)
target_link_libraries(embed PRIVATE octet::octet)" >"$tmp/static-find/CMakeLists.txt"
quiet cmake -S "$tmp/static-find" -B "$tmp/only-c" -DCMAKE_PREFIX_PATH="$tmp/prefix"
quiet cmake --build "$tmp/only-c"
works "$tmp/only-c/embed" "$tmp/static-find/build/outside"
[ -z "$(find "$tmp" -name 'liboctet.so*' ! -path "$tmp/shared/*")" ] || fail "a shared library was built"
! ldd "$tmp/static-find/build/embed" | grep -q liboctet || fail "not linked statically"
echo "vendored: $expected"
