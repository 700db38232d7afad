"""A Ray gang on a Node Fleet: the ports that each member leases, and what the trusted runner in its container is told.

Every member's container runs ``nodeside/ray_runner.py`` (mounted read-only beside the plan). Rank 0 starts Ray's head,
waits until all members have joined, runs the user's command and ends with its exit code; the others join and stay until
the head is gone. Containers have the machine's network, so every port that Ray would choose or default to is named
here: two gangs on one machine never meet (L-H3).
"""

from __future__ import annotations

import json
from typing import Any

from .plan import MemberPlan

RUNNER = "ray_runner.py"  # its file name beside plan.json
# The first leased ports of a member, in this order. Rank 0 alone uses all of them; the block is the same for every rank,
# so that rank and port have nothing to do with each other.
FIXED_PORTS = (
    "gcs",  # the head's control store: members and the driver connect here; rank 0's is the plan's main_port (default 6379)
    "node-manager",  # scheduler of this machine, called by all others (default: any)
    "object-manager",  # objects go from machine to machine here (default: any)
    "runtime-env-agent",  # called by this machine's scheduler (default: any)
    "dashboard-agent-grpc",  # receives metrics and events of this machine's processes (default: any)
    "dashboard-agent-http",  # of the same agent, for job submission (default 52365)
    "metrics",  # Prometheus metrics of this machine (default: any)
    "client",  # ray:// clients; the head binds 10001 when the image has grpcio, and cannot be told not to
    "dashboard",  # off, but its process is told its port all the same (default 8265)
    "autoscaler-metrics",  # of the head's monitor, on every address (default 44217; set by a variable only)
    "dashboard-metrics",  # of the head's dashboard process (default 44227; set by a variable only)
)
# A worker process (of a task, an actor or a driver) binds one port. Tasks keep at most one process a CPU busy, and as many
# again idle or blocked in ray.get; actors need no CPU while they run, hence the constant.
WORKER_PORTS_PER_CPU = 2
WORKER_PORTS_MORE = 32
BLOCK = 32  # blocks are whole multiples of it, so that blocks of different jobs leave no gaps that nobody can use
JOIN_SECONDS = 300.0  # images are there before the commit: what is left is starting Ray, up to a minute on a busy machine
OBJECT_STORE_SHARE = 0.3  # of the container's memory: Ray's own default; its /dev/shm is half of the memory
OBJECT_STORE_LEAST = 80 << 20  # Ray refuses less than 75 MiB

# Exit codes of the runner itself, outside of what shells (126 up), sysexits.h (64 to 78) and common programs use.
EXIT_REASONS = {
    91: ("ray-version", "the image does not have exactly the Ray that the job asks for"),
    92: ("ray-port-taken", "a leased port is in use by something that is not Tuneplane's"),
    93: ("ray-start-failed", "Ray did not start"),
    94: ("ray-peers-missing", "not all members of the gang joined in time"),
    95: ("ray-lost", "Ray ended, or its head could not be reached, while the job was running"),
}


def plan_problem(plan: MemberPlan) -> str:
    """Why a Node cannot run ``plan`` as Ray, which it has from outside; "" when it can, or when it is no Ray plan."""
    if plan.orchestrator == "ray" and len(set(plan.ports)) <= len(FIXED_PORTS):
        return f"a Ray member needs more than {len(FIXED_PORTS)} ports, the plan has {len(set(plan.ports))}"
    return ""


def exit_reason(plan: MemberPlan, exit_code: int) -> tuple[str, str]:
    """Code and detail when a member's exit code is one of the runner's own; ("", "") for all others."""
    if plan.orchestrator != "ray" or exit_code not in EXIT_REASONS:
        return "", ""
    code, what = EXIT_REASONS[exit_code]
    return code, f"{plan.member} ended with exit code {exit_code}: {what}; its log says more"


def ray_ports(cpu_millis: int) -> int:
    """How many ports a member with this CPU limit leases on its Node."""
    wanted = len(FIXED_PORTS) + WORKER_PORTS_MORE + WORKER_PORTS_PER_CPU * ray_cpus(cpu_millis)
    return -(-wanted // BLOCK) * BLOCK


def ray_cpus(cpu_millis: int) -> int:
    """Ray counts whole CPUs: rounded down, and at least one, or no task would ever run."""
    return max(1, cpu_millis // 1000)


def object_store_bytes(memory_bytes: int) -> int:
    return max(OBJECT_STORE_LEAST, int(memory_bytes * OBJECT_STORE_SHARE))


def host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def container_command(plan: MemberPlan, directory: str) -> tuple[str, ...]:
    """What the container of a Ray member runs; ``directory`` is where it finds the runner."""
    return ("python3", f"{directory}/{RUNNER}", json.dumps(runner_settings(plan), sort_keys=True), *plan.command)


def runner_settings(plan: MemberPlan) -> dict[str, Any]:
    """All that the runner needs to know. It stands in the container's command line: nothing in it is secret."""
    fixed = dict(zip(FIXED_PORTS, plan.ports, strict=False))
    return {
        "ray_version": plan.ray_version,
        "rank": plan.rank,
        "world": plan.world,
        "head": [plan.main_address, plan.main_port],
        "ray_address": host_port(plan.main_address, plan.main_port),
        "options": _start_options(plan, fixed),
        "client_port": fixed["client"],
        "fixed_ports": sorted(fixed.values()),
        "worker_ports": list(plan.ports[len(FIXED_PORTS) :]),
        "environment": {
            "AUTOSCALER_METRIC_PORT": str(fixed["autoscaler-metrics"]),
            "DASHBOARD_METRIC_PORT": str(fixed["dashboard-metrics"]),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        "join_seconds": JOIN_SECONDS,
        "stop_signal": plan.stop_signal,
        "grace_seconds": plan.stop_grace_seconds,
    }


def rank_resource(rank: int) -> str:
    """The resource that a member of ``rank`` offers, so that a task can ask for its machine."""
    return f"tuneplane_rank_{rank}"


def _start_options(plan: MemberPlan, fixed: dict[str, int]) -> list[str]:
    """Of ``ray start``, but for the worker ports and the client port, which the runner chooses by what it finds."""
    head = [
        "--head",
        f"--port={fixed['gcs']}",
        "--include-dashboard=false",
        f"--dashboard-port={fixed['dashboard']}",
        "--temp-dir=/tmp/ray",
    ]
    return [
        *(head if plan.rank == 0 else [f"--address={host_port(plan.main_address, plan.main_port)}"]),
        f"--node-ip-address={plan.address}",
        f"--node-manager-port={fixed['node-manager']}",
        f"--object-manager-port={fixed['object-manager']}",
        f"--runtime-env-agent-port={fixed['runtime-env-agent']}",
        f"--dashboard-agent-grpc-port={fixed['dashboard-agent-grpc']}",
        f"--dashboard-agent-listen-port={fixed['dashboard-agent-http']}",
        f"--metrics-export-port={fixed['metrics']}",
        f"--num-cpus={ray_cpus(plan.cpu_millis)}",
        f"--num-gpus={len(plan.gpu_uuids)}",
        f"--object-store-memory={object_store_bytes(plan.memory_bytes)}",
        f"--resources={json.dumps({rank_resource(plan.rank): 1})}",
        "--disable-usage-stats",
    ]
