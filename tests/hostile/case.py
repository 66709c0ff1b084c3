"""A hostile command and what must come of it.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of a table in cases/*.py.

    `command` runs under bash in a fresh, empty folder. These placeholders are replaced in it and in the words; other braces
    stay as they are:

      {fovea}   the program
      {work}    the folder of this case
      {train}   `fovea train` with the small recipe, run folder {work}/run; keys may follow
      {recipe}  that recipe; {text} its text, a file
      {run}     a finished run with checkpoints of steps 4, 8 and 12: copy it before you change it
      {model}   a model folder (config.json, model.safetensors, tokenizer files): copy it too
      {tools}   this folder, for scripts of its own: python3 {tools}/flip.py FILE
    """

    name: str  # a sentence: what holds
    command: str
    code: int | tuple[int, ...] = 2  # exit code, 128 + number for a signal
    says: tuple[str, ...] = ()  # words of stderr
    prints: tuple[str, ...] = ()  # words of stdout
    never: tuple[str, ...] = ()  # words that neither may hold; run.py adds those of a crash
    seconds: float = 30  # more is a failure
    memory: int = 8192  # MiB of address space
