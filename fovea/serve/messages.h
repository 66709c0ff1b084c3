// The messages of a conversation, from JSON.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/serve/problem.h"
#include "fovea/text/chat_template.h"

namespace fovea::serve {

/// A list of {"role", "content"}; content is text or a list of text parts. Problem naming the
/// message that is neither, or holds tools or pictures.
std::vector<ChatMessage> read_messages(const Json& list);

}  // namespace fovea::serve
