"""Names and texts that file systems, shells and terminals take for something else.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

CASES = [
    Case(
        "make passes a text on as it stands",
        "mkdir -p scripts build/bin && cp {tools}/../../Makefile . && cp {tools}/../../scripts/demo.sh {tools}/../../scripts/retrofit.sh scripts && "
        "for s in setup build fetch-model test-some; do printf '#!/bin/sh\\necho \"$@\" > %s.said\\n' $s > scripts/$s.sh; done; "
        "printf '#!/bin/sh\\nprintf \"<%%s>\\\\n\" \"$@\"\\n' > build/bin/fovea; chmod +x build/bin/fovea scripts/*; "
        "text=\"it's \\`touch ran\\` \\$(touch ran) a\\$b.txt\"; make JOBS=1 demo TEXT=\"$text\" && make JOBS=1 retrofit TEXT=\"$text\" && "
        "make JOBS=1 test T=\"$text\" && cat test-some.said && [ ! -e ran ]",
        code=0,
        prints=("<data.sources.0.path='it''s `touch ran` $(touch ran) a$b.txt'>", "<it's `touch ran` $(touch ran) a$b.txt>",
                "1 it's `touch ran` $(touch ran) a$b.txt"),
    ),
]
