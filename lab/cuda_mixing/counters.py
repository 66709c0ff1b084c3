# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
"""Table of an Nsight Compute raw CSV: python3 counters.py ncu.csv"""
import csv
import sys

lines = list(csv.reader(line for line in open(sys.argv[1]) if not line.startswith("==")))
head = next(i for i, line in enumerate(lines) if len(line) > 20)
names = lines[head]
columns = [("us", "gpu__time_duration.sum", 1e-3), ("regs", "launch__registers_per_thread", 1), ("warps%", "sm__warps_active.avg.pct_of_peak_sustained_active", 1),
           ("ipc", "sm__inst_executed.avg.per_cycle_active", 1), ("L2 tags%", "lts__t_tag_requests.avg.pct_of_peak_sustained_elapsed", 1),
           ("L2 sect%", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed", 1), ("dram%", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1),
           ("smem wf%", "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed", 1), ("l1%", "l1tex__throughput.avg.pct_of_peak_sustained_active", 1),
           ("tensor%", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 1), ("SM cycles avg/max", None, 1)]
print("kernel".ljust(30), *(c[0].rjust(8) for c in columns))
number = lambda line, name: float(line[names.index(name)].replace(",", "")) if name in names else float("nan")
for line in lines[head + 2:]:
    out = []
    for title, name, factor in columns:
        x = number(line, name) * factor if name else number(line, "sm__cycles_active.avg") / number(line, "sm__cycles_active.max")
        out.append(f"{x:8.2f}" if x < 10 else f"{x:8.0f}")
    print(line[names.index("Kernel Name")].replace("void ", "")[:30].ljust(30), *out)
