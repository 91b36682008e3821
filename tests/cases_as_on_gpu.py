"""Cases with the kernels that Inductor writes for a GPU, on machines without one.

`python cases_as_on_gpu.py NAME...` prints as JSON what is wrong with the verdicts on each case. The
kernels run on the CPU; what Inductor and torch.optim make depend on the device is decided as on a
GPU: unrolled reductions, what is kept in memory instead of computed again, online softmax, foreach
optimizers. A process of its own, because Inductor registers its patterns once.
"""

from __future__ import annotations

import json
import sys

import torch._inductor.config as config
import torch._inductor.fx_passes.post_grad as post_grad
import torch.optim.optimizer as optimizer
from case_runs import expected, load, run, wrong_verdicts
from torch._inductor import ir, scheduler

from flagprism_torch.backends import cpu


def decide_as_on_gpu() -> None:
    ir.is_gpu = lambda device: True
    scheduler.BaseSchedulerNode.is_gpu = lambda node: True
    config.realize_acc_reads_threshold = config._realize_acc_reads_threshold_default
    config.realize_opcount_threshold = config._realize_opcount_threshold_default
    post_grad.prepare_softmax_extra_check = lambda match: True
    optimizer._get_foreach_kernels_supported_devices = lambda: ["cpu"]


if __name__ == "__main__":
    assert cpu.enable_cpu()
    decide_as_on_gpu()
    wrong = {}
    for name in sys.argv[1:]:
        expect, session = expected(load(name), "cuda"), run(name, "cpu").session
        wrong[name] = list(wrong_verdicts(expect, session.anomalies, session.table()))
    print(json.dumps(wrong))
