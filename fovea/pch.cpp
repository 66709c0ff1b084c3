// Anchor of the precompiled header set (fovea/CMakeLists.txt).
