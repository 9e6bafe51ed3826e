# find_package(disc CONFIG REQUIRED PATHS <what `python -c "import disc; print(disc.cmake_prefix_path)"` prints>)
# gives the target disc::ral: the runtime that loads and calls artifacts, without Python. Its interface is ral.h.
get_filename_component(_disc_ral "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET disc::ral)
  add_library(disc::ral SHARED IMPORTED)
  set_target_properties(disc::ral PROPERTIES
    IMPORTED_LOCATION "${_disc_ral}/libral.so"
    IMPORTED_SONAME "libral.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_disc_ral}/include")
endif()
if(NOT EXISTS "${_disc_ral}/libral.so")
  set(disc_FOUND FALSE)
  set(disc_NOT_FOUND_MESSAGE "${_disc_ral}/libral.so is missing: build or install disc first")
endif()
unset(_disc_ral)
