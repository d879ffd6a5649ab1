"""The settings of all processes of a hub, without secrets."""

from contextlib import suppress
from dataclasses import asdict
from typing import Any

from deltahub.registry.data_folder import WORKER
from deltahub.registry.leases.processes import list_processes
from deltahub.registry.settings import ShownSetting, shown_settings
from deltahub.server.hub import Hub


def settings_in_force(hub: Hub) -> dict[str, list[dict[str, Any]]]:
    """Return the settings by process: the hub's, this server's, and those of each worker, which it
    has told when it began. Keys: those of ShownSetting.
    """
    found = {
        "hub": [asdict(each) for each in shown_settings(hub.registry.settings)],
        "server": [asdict(each) for each in shown_settings(hub.settings)],
    }
    workers = [each for each in list_processes(hub.registry) if each.command == WORKER]
    for number, worker in enumerate(workers, 1):
        name = "worker" if len(workers) == 1 else f"worker {number} on {worker.host}"
        # A worker of another release may say it in another way.
        with suppress(TypeError, KeyError):
            found[name] = [asdict(ShownSetting(**each)) for each in worker.about["settings"]]
    return found
