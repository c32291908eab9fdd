"""A Slurm cluster of hundreds of nodes: all daemons run on one machine and share its cores; 256 nodes take 2 GB."""

import os
import re
import time
from collections import Counter

from tests.e2e.slurm.cluster import NETWORK, Cluster

_FIRST_PORT = 10_000  # scripts of render-job use ports from 20,000


class Crowd(Cluster):
    """The nodes are named n1, n2, …; none of them can be lost."""

    def power_on(self, name: str) -> None:
        self.machines[name] = self.control
        self.start_slurmd(name)

    def power_off(self, name: str) -> None:
        self.machines.pop(name, None)  # ends with the machine

    def requests(self) -> Counter[str]:
        """What slurmctld was asked, and how often."""
        asked = re.findall(r"(\w+) +\( *\d+\) count:(\d+)", self.administer("sdiag").split(" by user")[0])
        return Counter({name: int(count) for name, count in asked if "STATS" not in name})

    def finish(self, script: str) -> Counter[str]:
        """Run a script to its end; the requests to slurmctld that it caused."""
        before = self.requests()
        self.submit(script)
        while not (caused := self.requests() - before)["REQUEST_COMPLETE_BATCH_SCRIPT"]:
            time.sleep(0.2)
        return caused

    def processor_s(self, name: str = "") -> float:
        """The processor time of the daemons, or of those of a name, and of the processes that they have waited for."""
        stats = self.control.run("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || true").splitlines()
        ticks = (sum(map(int, stat.rpartition(") ")[2].split()[11:15])) for stat in stats if f"({name}" in stat)
        return sum(ticks) / os.sysconf("SC_CLK_TCK")

    def _address(self, name: str) -> str:
        return f"{NETWORK}.1"

    def _write_files(self) -> None:
        super()._write_files()
        text = self._conf.read_text().replace("cred_expire=5", "cred_expire=3600")  # starts take long here
        port = "NodeHostname=control Port={}".format
        self._conf.write_text(re.sub(r"NodeHostname=n(\d+)", lambda node: port(_FIRST_PORT + int(node[1])), text))
