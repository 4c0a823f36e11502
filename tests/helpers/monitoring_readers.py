"""What each tracker holds after runs without a server, read from its own files in the working directory.

Each reader returns the runs that it finds: id, settings, names of the files of checkpoints, number of videos, and
`records` in the order in which they were logged, or `histories` (by figure, with times) where the tracker does not keep
records.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK_BYTES, _HEADER_BYTES = 32768, 7


def read_wandb() -> list[dict[str, Any]]:
    """From the transaction logs `*.wandb`; every start has one."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs: dict[str, dict[str, Any]] = {}
    for path in sorted(Path().glob("train_dir/*/trackers/wandb/offline-run-*/*.wandb"), key=lambda each: str(each)):
        run: dict[str, Any] = {}
        for message in _messages(path.read_bytes()):
            record = Record()
            record.ParseFromString(message)
            kind = record.WhichOneof("record_type")
            if kind == "run" and not run:
                run = runs.setdefault(
                    record.run.run_id,
                    {"id": record.run.run_id, "records": [], "settings": {}, "files": [], "videos": 0},
                )
                run["settings"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                values = {name: json.loads(text) for name, text in items.items() if not name.startswith("_")}
                is_video = "video" in values or any(name.startswith("video/") for name in values)
                if is_video:
                    run["videos"] += 1
                else:
                    run["records"].append([values.pop("env_steps"), values])
            elif kind == "artifact" or (kind == "request" and record.request.HasField("log_artifact")):
                artifact = record.artifact if kind == "artifact" else record.request.log_artifact.artifact
                run["files"] += [entry.path for entry in artifact.manifest.contents]
    return list(runs.values())


def read_mlflow() -> list[dict[str, Any]]:
    """From the SQLite store, through the client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return [
        {
            "id": run.info.run_id,
            "settings": run.data.params,
            "records": None,
            "histories": {
                name: [
                    [metric.step, metric.value, metric.timestamp]
                    for metric in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            },
            "files": [Path(file.path).name for file in client.list_artifacts(run.info.run_id, "checkpoints/best")],
            "videos": len(client.list_artifacts(run.info.run_id, "videos")),
        }
        for run in client.search_runs(experiments)
    ]


def read_trackio() -> list[dict[str, Any]]:
    """From its SQLite database."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = []
    for run in trackio.Api().runs("asyncrl"):
        rows = sorted(SQLiteStorage.get_logs("asyncrl", run.name), key=lambda row: row["timestamp"])
        records = [
            [row["step"], {name: value for name, value in row.items() if name not in ("step", "timestamp")}]
            for row in rows
            if "video" not in row
        ]
        (artifact,) = SQLiteStorage.list_artifacts("asyncrl")
        manifest = SQLiteStorage.get_artifact_manifest("asyncrl", artifact["name"], "latest")
        files = [Path(entry["path"]).name for entry in manifest["manifest"]]
        runs.append(
            {
                "id": run.name,
                "settings": run.config,
                "records": records,
                "files": files,
                "videos": len(rows) - len(records),
            }
        )
    return runs


def read_comet() -> list[dict[str, Any]]:
    """From the archives for `comet upload`; every start has one."""
    archives = [zipfile.ZipFile(path) for path in Path().glob("train_dir/*/trackers/comet/*.zip")]
    about = {archive: json.loads(archive.read("experiment.json")) for archive in archives}
    runs: dict[str, dict[str, Any]] = {}
    for archive in sorted(archives, key=lambda each: about[each]["start_time"]):
        key = about[archive]["offline_id"]
        run = runs.setdefault(
            key, {"id": key, "settings": {}, "records": None, "histories": {}, "files": [], "videos": 0}
        )
        for line in archive.read("messages.json").splitlines():
            message = json.loads(line)
            payload = message["payload"]
            if message["type"] == "parameter_msg":
                setting = payload.get("param") or payload["params"]
                run["settings"][setting["paramName"]] = setting["paramValue"]
            elif message["type"] == "metric_msg" and payload["metric"]["metricName"] != "process duration":
                metric = payload["metric"]
                history = run["histories"].setdefault(metric["metricName"], [])
                history.append([metric["step"], float(metric["metricValue"]), payload["local_timestamp"]])
            elif message["type"] == "file_upload" and payload["upload_type"] == "video":
                run["videos"] += 1
            elif message["type"] == "file_upload":
                run["files"].append(payload["additional_params"]["fileName"])
    return list(runs.values())


def _messages(log: bytes) -> Iterator[bytes]:
    """The messages of a LevelDB log after wandb's own header: pieces in blocks, each with a header of 7 bytes."""
    position, message = _HEADER_BYTES, b""
    while position + _HEADER_BYTES <= len(log):
        if _BLOCK_BYTES - position % _BLOCK_BYTES < _HEADER_BYTES:
            position += _BLOCK_BYTES - position % _BLOCK_BYTES
            continue
        size, kind = struct.unpack_from("<HB", log, position + 4)
        message += log[position + _HEADER_BYTES : position + _HEADER_BYTES + size]
        position += _HEADER_BYTES + size
        if kind in (1, 4):  # whole, or the last piece
            yield message
            message = b""


READERS = {"wandb": read_wandb, "mlflow": read_mlflow, "trackio": read_trackio, "comet": read_comet}
