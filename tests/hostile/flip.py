#!/usr/bin/env python3
"""flip.py FILE [OFFSET [BIT]]: inverts one bit of a file, of the byte in the middle unless told.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys

path = pathlib.Path(sys.argv[1])
data = bytearray(path.read_bytes())
offset = int(sys.argv[2]) if len(sys.argv) > 2 else len(data) // 2
data[offset] ^= 1 << (int(sys.argv[3]) if len(sys.argv) > 3 else 0)
path.write_bytes(data)
