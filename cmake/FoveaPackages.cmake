# Libraries from Debian packages (scripts/debian-packages.txt).

find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Threads REQUIRED)
find_library(FOVEA_ZSTD zstd REQUIRED)
find_library(FOVEA_PCRE2 pcre2-8 REQUIRED)
find_library(FOVEA_UTF8PROC utf8proc REQUIRED)
