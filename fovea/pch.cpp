// Anchor of the precompiled header set (fovea/CMakeLists.txt).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
