# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
"""Every kernel once, for a profiler or a checker: python3 profile_kernels.py B T D."""
import sys
import torch
import bindings as K

B, T, D = (int(x) for x in sys.argv[1:4])
g = torch.Generator(device="cuda").manual_seed(0)
r = lambda *s: torch.randn(*s, device="cuda", generator=g)
q, k, v, d_o = (r(B, 16, T, D).bfloat16() for _ in range(4))
pre, post, mpre, mpost = 0.1 * r(16, 6, 11), 0.1 * r(16, 6, 11), 0.1 * r(16, 16), 0.1 * r(16, 16)
o, lse = K.conv_forward(q, k, v, pre, post)
K.ConvGrad(q, k, v, pre, post, d_o, lse).run()
m = K.Mix(q, k, v, mpre, mpost, d_o)
m.forward()
m.backward()
c = K.ConvMix(q, k, v, pre, post, mpre, mpost, d_o)
c.forward()
c.backward()
torch.cuda.synchronize()
print("finite", bool(torch.isfinite(o).all() and torch.isfinite(m.dq).all() and torch.isfinite(c.dq).all()))
