#!/usr/bin/env python3
"""edit_json.py FILE CODE: runs Python on the object `j` of a JSON file and writes it back.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import sys

path = pathlib.Path(sys.argv[1])
j = json.loads(path.read_text())
exec(sys.argv[2])  # the code is of our own tables
path.write_text(json.dumps(j, indent=2) + "\n")
