"""Training scripts in two processes on CPU over gloo, as `accelerate launch` would start them on GPUs: what is shimmed is here.

accelerate has DeepSpeed and FSDP for accelerators only: on CPU it averages gradients, whatever its config asks for, and says
nothing. So it is told that these processes are those of a machine with GPUs, whose device is the CPU (`pretend`). DeepSpeed has
a CPU device of its own; what it would compile for it (shared memory in place of gloo) is left out.

Most of a short training is imports, so one server imports and forks (`Forked` in conftest.py asks it): `python gloo.py` reads a
job a line from stdin, forks its processes, answers with their pids, and once they have ended with their exit codes. One process
is a script without a launcher.
"""

import importlib
import json
import os
import runpy
import socket
import sys
import traceback
from typing import Any

PROCESSES = 2  # of every strategy
COPIED = "the whole model was copied"


def pretend() -> None:
    """Several processes on CPU count as several GPUs, whatever the recipe's `use_cpu` says; copying a model is told."""
    from accelerate import Accelerator
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    begin, get_state_dict = PartialState.__init__, Accelerator.get_state_dict

    def begin_on_gpus(self: Any, cpu: bool = False, **settings: Any) -> None:
        begin(self, False, **settings)

    def backend(self: Any, *_: Any, **__: Any) -> tuple[str, DistributedType]:
        return "gloo", DistributedType.MULTI_GPU

    def told(self: Any, *given: Any, **settings: Any) -> Any:
        print(COPIED)
        return get_state_dict(self, *given, **settings)

    PartialState.__init__, PartialState._prepare_backend, Accelerator.get_state_dict = begin_on_gpus, backend, told
    shared_memory: Any = importlib.import_module("deepspeed.comm.torch")  # as an attribute it is torch itself
    shared_memory.build_shm_op = lambda: None


def become(job: dict[str, Any], rank: int, count: int, port: int) -> None:
    """A process of the job: its output goes to `log`, and `script` runs with `arguments`; never returns."""
    code = 1
    try:
        log = os.open(f"{job['log']}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(job["environment"])
        if count > 1:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            os.environ.update({name: str(value) for name, value in place.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        if count > 1 and "ACCELERATE_USE_CPU" not in job["environment"]:
            os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
            pretend()
        sys.argv = [job["script"], *job["arguments"]]
        runpy.run_path(job["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import deepspeed.runtime.zero.muon.original_muon
    import torch
    import trl.trainer.sft_trainer

    import train.trainers

    assert train.trainers
    torch.set_num_threads(1)
    assert deepspeed and trl.trainer.sft_trainer
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes to stderr
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pids = []
        for rank in range(job["processes"]):
            pid = os.fork()
            if pid == 0:
                become(job, rank, job["processes"], port)
            pids.append(pid)
        print(json.dumps(pids), file=answers, flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), file=answers, flush=True)


if __name__ == "__main__":
    main()
