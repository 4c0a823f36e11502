"""Files of runs, and what `asyncrl plot` says and draws of them."""

import json

import matplotlib.image
import yaml

from asyncrl.plot import main


def write_run(folder, name, records, **config):
    path = folder / name
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "config.yaml").write_text(yaml.safe_dump({"env": "Walker-v9", "algo": "ppo", **config}))
    return path


def steady(folder, name, num_workers, steps_per_s, total, first_return=0.0, startup_s=2.0):
    """Ten records; worker w's return is that of the run plus w, and rises by one with every record."""
    records = []
    for idx in range(1, 11):
        steps = idx * total // 10
        record = {"env_steps": steps, "time/time_elapsed": startup_s + steps / steps_per_s}
        for worker in range(num_workers):
            record[f"worker/{worker}/ep_rew_mean"] = first_return + idx + worker
            record[f"worker/{worker}/env_steps"] = steps // num_workers
        record["rollout/ep_rew_mean"] = first_return + idx + (num_workers - 1) / 2
        records.append(record)
    records.insert(5, {"env_steps": total // 2, "eval/mean_reward": 99.0})
    return write_run(folder, name, records, num_workers=num_workers)


def call(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def numbers(capsys, *arguments):
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def assert_is_drawn(path, num_colors):
    """The picture has what it should show: many pixels that are neither white nor grey, in so many lines' colours."""
    image = matplotlib.image.imread(path)
    pixels = (image[..., :3] * 255).round().astype(int).reshape(-1, 3)
    palette = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167))
    counts = [int((abs(pixels - color).max(axis=1) <= 2).sum()) for color in palette]
    assert sum(count > 150 for count in counts) == num_colors, counts
