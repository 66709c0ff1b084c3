"""Time and memory without bound, numbers outside their ranges, damaged numbers, and how refusals read.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

INT64_MAX = 2**63 - 1
CONTEXT = 2**31
ESCAPE = "\x1b"

# Python lines that change a model folder's config.json or the header of its weights.
CONFIG = "import json, sys; p = sys.argv[1] + '/config.json'; c = json.load(open(p)); {change}; json.dump(c, open(p, 'w'))"
HEADER = (
    "import json, struct, sys; p = sys.argv[1] + '/model.safetensors'; b = open(p, 'rb').read(); "
    "n = struct.unpack('<Q', b[:8])[0]; h = json.loads(b[8:8 + n]); d = bytearray(b[8 + n:]); "
    "k = sorted(t for t in h if t != '__metadata__')[0]; {change}; t = json.dumps(h).encode(); "
    "open(p, 'wb').write(struct.pack('<Q', len(t)) + t + bytes(d))"
)


def changed(script: str, change: str) -> str:
    return f'cp -r {{model}} m && python3 -c "{script.format(change=change)}" m && '


def refused(name: str, key: str, *says: str) -> Case:
    """A key of the recipe with a value outside its range."""
    word = key.split("=")[0].split(".")[-1]
    return Case(name, f"{{train}} {key}", says=(word, *says), seconds=10)


# A GGUF file of one metadata entry whose text is long.
LONG_GGUF = (
    "import struct, sys; n, k = 100_000, b'general.architecture'; "
    "sys.stdout.buffer.write(b'GGUF' + struct.pack('<IQQQ', 3, 0, 1, len(k)) + k + struct.pack('<IQ', 8, n) + b'x' * n)"
)

CASES = [
    Case(
        "a long value of a file does not fill the terminal",
        f'python3 -c "{LONG_GGUF}" > m.gguf; {{fovea}} generate m.gguf Hello 2> told; code=$?; '
        'cat told >&2; [ $(wc -c < told) -lt 5000 ] && exit $code',
        says=("expected an architecture", "bytes ..."),
        seconds=10,
    ),
    # Reading
    Case("a recipe without an end is refused", "{fovea} plan /dev/zero", says=("16 MB", "a recipe"), seconds=10),
    Case("a prompt without an end is refused", "{fovea} generate {model} --file /dev/zero", says=("256 MB",)),
    Case("a prompt on stdin without an end is refused", "{fovea} generate {model} < /dev/zero", says=("stdin", "256 MB")),
    Case("a text without an end is refused", "{fovea} inspect {model} --text-file /dev/zero", says=("256 MB",)),
    Case("a device is no text to train on", "{train} data.sources.0.path=/dev/zero", says=("device",)),
    Case(
        "a recipe of 150,000 keys is read and its first key named",
        "python3 -c \"print('\\n'.join(f'key{i}: {i}' for i in range(150000)))\" > r.yaml; {fovea} plan r.yaml",
        says=("r.yaml:1", "unknown key 'key0'"),
    ),
    Case(
        "a config.json of 150,000 keys is read",
        changed(CONFIG, "c.update({f'key{i}': i for i in range(150000)})") + "{fovea} generate m x --max-tokens 1",
        code=0,
    ),
    Case(
        "a header of 40,000 tensors is read and refused as another model's",
        changed(HEADER, "n = len(d); h.update({f't{i}': dict(dtype='F32', shape=[1], data_offsets=[n + 4 * i, n + 4 * i + 4]) "
                        "for i in range(40000)}); d += bytes(160000)") + "{fovea} generate m x",
        says=("unexpected tensors", "and 39992 more"),
    ),
    Case(
        "a line of JSONL without an end is refused",
        "(head -c 300000000 /dev/zero | tr '\\0' a | gzip -1) > x.jsonl.gz; {fovea} data prepare x.jsonl.gz --cache c",
        says=("x.jsonl.gz:1", "256 MB"), seconds=60,
    ),
    # Sizes
    Case("a context that no memory holds is refused before training", f"{{train}} model.context={CONTEXT}", code=1,
         says=("not enough memory", "this machine has", "lower"), seconds=10),
    Case("it is planned at once", f"{{fovea}} plan {{recipe}} model.context={CONTEXT}", code=0, seconds=10),
    Case("a stranger's config.json with such a context is refused",
         changed(CONFIG, f"c['fovea']['model']['context'] = {CONTEXT}") + "{fovea} generate m x", code=1,
         says=("not enough memory",), seconds=10),
    Case("a text that no memory holds is refused", f"{{fovea}} generate {{model}} x --context {CONTEXT} --max-tokens {CONTEXT}", code=1,
         says=("not enough memory", "--context"), seconds=10),
    Case("a window beyond all positions is refused", f"{{fovea}} eval {{model}} --text {{text}} --window {INT64_MAX}",
         says=("--window", "0 to 2147483648"), seconds=10),
    # Ranges
    refused("a hundred thousand threads are refused", "train.threads=100000", "0 to 1024", "100000"),
    refused("as many threads as there are numbers are refused", f"train.threads={INT64_MAX}", "0 to 1024"),
    Case("4096 threads are refused", "{fovea} generate {model} x --threads 4096", says=("--threads", "0 to 1024"), seconds=10),
    refused("a budget of all numbers is refused", f"train.tokens={INT64_MAX}", "0 to 1e15"),
    refused("micro-batches of all numbers are refused", f"train.accumulation={INT64_MAX}"),
    refused("rows of all numbers are refused", f"train.batch_rows={INT64_MAX}"),
    refused("a scale beyond float32 is refused", "model.query_init=1e39", "positive"),
    refused("a logit scale beyond float32 is refused", "model.logit_scale=1e300", "positive"),
    refused("an embedding scale beyond float32 is refused", "model.embedding_scale=1e300"),
    refused("a temperature beyond float32 is refused", "model.attention.temperature.tau_max=1e300"),
    refused("a deviation beyond float32 is refused", "model.init.std=1e300"),
    refused("a distance of all numbers is refused", f"model.attention.bias.max_distance={INT64_MAX}"),
    refused("a negative tail is refused", "data.sources.0.scored_tail=-1", "0 to"),
    refused("what is no number is refused", "train.optimizer.learning_rate=nan", "finite"),
    # Options
    Case("a negative copy is refused", "{fovea} eval {model} --text {text} --copy -1", says=("--copy", "-1")),
    Case("negative sinks are refused", "{fovea} eval {model} --text {text} --sinks -5", says=("--sinks", "-5")),
    Case("groups of a model without Focus are refused", "{fovea} eval {model} --text {text} --top-k 2",
         says=("--top-k", "no Focus")),
    Case("groups without Focus are refused by what was given", "{fovea} generate {model} x --focus-top-k 5",
         says=("--focus-top-k", "no Focus", "got 5"), never=("got configured",)),
    Case("a speed that is no number is refused", "{fovea} plan {recipe} --flops nan", says=("--flops", "nan")),
    Case("a speed of zero is refused in few digits", "{fovea} plan {recipe} --flops 0", says=("1 to 1e30",), never=("0000000",)),
    Case("keeping nothing is refused in few digits", "{fovea} checkpoint prune {run} --keep 0", says=("1 to 1000000",),
         never=("0000000",)),
    Case("a share of zero is refused in few digits", "{fovea} generate {model} x --top-p 0", says=("'top_p' must be",),
         never=("e-308",)),
    # Damaged numbers
    Case("bits of floats are not read as integers", changed(HEADER, "h[k]['dtype'] = 'I32'") + "{fovea} eval m --text {text}",
         says=("floating-point", "I32")),
    Case("weights that are no numbers are not scored",
         changed(HEADER, "a = h[k]['data_offsets'][0]; d[a:a + 4] = bytes([0, 0, 192, 127])") + "{fovea} eval m --text {text}",
         code=1, says=("NaN",), never=("nan ",)),
    Case("weights that are no numbers are not inspected",
         changed(HEADER, "a = h[k]['data_offsets'][0]; d[a:a + 4] = bytes([0, 0, 192, 127])") + "{fovea} inspect m --text x",
         code=1, says=("NaN",)),
    # Words
    Case("a vocabulary beyond all is refused with a range that exists",
         changed(CONFIG, "c['fovea']['model']['vocab_size'] = 10 ** 12") + "{fovea} generate m x",
         says=("'fovea.model.vocab_size' must be 0 to 4194304",)),
    Case("a tensor's name does not act on the terminal",
         changed(HEADER, "h[chr(27) + '[31mred' + chr(10) + 'fovea: all is well'] = "
                         "dict(dtype='F32', shape=[0], data_offsets=[len(d), len(d)])") + "{fovea} generate m x",
         says=("\\x1b[31mred\\x0afovea",), never=(ESCAPE,)),
]
