# find_package(ecokv) gives three targets:
#   ecokv::ecokv         the shared library
#   ecokv::ecokv_static  the same, static
#   ecokv::core          ecokv_core.h alone: static, needs no C library
get_filename_component(_ecokv_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET ecokv::ecokv)
    add_library(ecokv::ecokv SHARED IMPORTED)
    set_target_properties(ecokv::ecokv PROPERTIES
        IMPORTED_LOCATION "${_ecokv_prefix}/lib/libecokv.so.@ABI@"
        IMPORTED_SONAME "libecokv.so.@ABI@"
        INTERFACE_INCLUDE_DIRECTORIES "${_ecokv_prefix}/include")

    add_library(ecokv::ecokv_static STATIC IMPORTED)
    set_target_properties(ecokv::ecokv_static PROPERTIES
        IMPORTED_LOCATION "${_ecokv_prefix}/lib/libecokv.a"
        IMPORTED_LINK_INTERFACE_LANGUAGES "C"
        INTERFACE_LINK_LIBRARIES "gcc_s;util;rt;pthread;m;dl"
        INTERFACE_INCLUDE_DIRECTORIES "${_ecokv_prefix}/include")

    add_library(ecokv::core STATIC IMPORTED)
    set_target_properties(ecokv::core PROPERTIES
        IMPORTED_LOCATION "${_ecokv_prefix}/lib/libecokv_core.a"
        IMPORTED_LINK_INTERFACE_LANGUAGES "C"
        INTERFACE_INCLUDE_DIRECTORIES "${_ecokv_prefix}/include")
endif()
unset(_ecokv_prefix)
