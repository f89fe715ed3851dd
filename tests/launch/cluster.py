"""Slurm on this machine: munged, slurmctld and two slurmd, each with eight GPUs that are only names."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("127.0.0.1", "127.0.0.2")  # a node's name is what its jobs are told to connect to, so it has to be an address
# Jobs are taken for what they ask for, not for what this machine has. A requeued job waits for as long as a credential lives.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
ReturnToService=2
KillWait=5
GresTypes=gpu
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName={nodes[0]} NodeHostname={host} NodeAddr={nodes[0]} Port={ports[1]} CPUs=128 RealMemory=2000000 Gres=gpu:8
NodeName={nodes[1]} NodeHostname={host} NodeAddr={nodes[1]} Port={ports[2]} CPUs=128 RealMemory=2000000 Gres=gpu:8
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing() -> str | None:
    """What keeps this machine from running the cluster."""
    if os.geteuid() != 0:
        return "the cluster is started as root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


class Cluster:
    """A running cluster; `environment` is what its commands need beside the usual one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        folder = self.folder
        (folder / "gpu").mkdir()
        (folder / "state").mkdir()
        for number in range(8):
            (folder / "gpu" / f"nvidia{number}").symlink_to("/dev/null")  # Slurm takes devices only
        config = CONFIG.format(folder=folder, host=socket.gethostname(), ports=_free_ports(3), nodes=NODES)
        (folder / "slurm.conf").write_text(config)
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu/nvidia[0-7]\n")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        try:
            places = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "seed-file": "munge.seed"}
            self._start("munged", "--foreground", "--force", *(f"--{key}={folder / name}" for key, name in places.items()))
            until(lambda: (folder / "munge.socket").exists(), 20, "munged did not start")
            self._start("slurmctld", "-D")
            for node in NODES:
                self._start("slurmd", "-D", "-N", node)
            until(lambda: self.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * 2, 60, "the nodes did not come up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what runs, then end the daemons and whatever jobs left behind."""
        if len(self._daemons) > 1:
            subprocess.run(["scancel", "--user", "root"], env=os.environ | self.environment, check=False, timeout=30)
            deadline = time.monotonic() + 20
            while self.run("squeue", "-h") and time.monotonic() < deadline:
                time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in _using(f"SLURM_CONF={self.folder}/slurm.conf"):
            os.kill(pid, signal.SIGKILL)

    def _start(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("ab") as out:
            environment = os.environ | self.environment
            self._daemons.append(subprocess.Popen(words, env=environment, stdout=out, stderr=out, start_new_session=True))

    def run(self, *words: str) -> str:
        """A command of Slurm's; what it says."""
        return subprocess.run(
            words, env=os.environ | self.environment, capture_output=True, text=True, timeout=60, check=False
        ).stdout.strip()

    def submit(self, line: str, folder: Path, **variables: str) -> int:
        """A line with sbatch, typed in a folder; the job's number."""
        environment = os.environ | self.environment | variables
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])  # Submitted batch job 7

    def states(self, job: int) -> list[str]:
        """The state of a job, or of all tasks of an array."""
        shown = self.run("scontrol", "show", "job", str(job), "--oneliner")
        return [word.removeprefix("JobState=") for word in shown.split() if word.startswith("JobState=")]

    def ended(self, job: int, seconds: float = 300) -> set[str]:
        """The states that a job ends in."""
        until(lambda: not self.run("squeue", "-h", "-j", str(job)), seconds, f"job {job} does not end")
        return set(self.states(job))


def until(ready: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait for a condition, asking five times a second."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _using(setting: str) -> list[int]:
    """Processes of this machine, other than this one, with a setting in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            own = process.name == str(os.getpid())
            if process.name.isdigit() and not own and setting.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found
