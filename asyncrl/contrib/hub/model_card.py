"""The page that the Hugging Face Hub shows of a run: what was trained, how well it does, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from asyncrl.config.schema import OF_ONE_START, TrainConfig
from asyncrl.config.settings import dump_mapping
from asyncrl.contrib.hub.repository import PLOT, SCHEME, VIDEO


def format_card(
    repo: str,
    config: TrainConfig,
    env_steps: int,
    newest_env_steps: int,
    which: str,
    results: Sequence[Mapping[str, Any]],
    folder: Path,
    license_name: str | None = None,
) -> str:
    """Returns the text of README.md, with the metadata that the Hub reads.

    Args:
        repo: name of the repository, user/name.
        config: settings of the run.
        env_steps: environment steps of the policy.
        newest_env_steps: environment steps of the newest checkpoint, from which the run can continue.
        which: the checkpoint that is published: newest, best, or another one's name.
        results: of each evaluated policy: actions, mean_reward, std_reward, episodes; under `deterministic` also those
            of its deterministic actions.
        folder: the files that are uploaded; those for readers are shown if they are there.
        license_name: the Hub's name of a licence, such as mit; None for none.
    """
    env, algorithm = config.env_id, config.algorithm.name.upper()
    metadata: dict[str, Any] = {} if license_name is None else {"license": license_name}
    metadata |= {
        "library_name": "asyncrl",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "asyncrl", config.algorithm.name, env],
    }
    if results:
        metadata["model-index"] = [
            {
                "name": algorithm,
                "results": [
                    {
                        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                        "dataset": {"type": env, "name": env},
                        "metrics": [_metric(*each, policy_idx, len(results)) for each in _kinds(result).items()],
                    }
                    for policy_idx, result in enumerate(results)
                ],
            }
        ]
    rows = {"environment": f"`{env}`", "algorithm": algorithm, "environment steps": f"{env_steps:,}"}
    for policy_idx, result in enumerate(results):
        name = "return" if len(results) == 1 else f"return of policy {policy_idx}"
        for kind, played in _kinds(result).items():
            rows[f"{name}, {kind} actions"] = f"{_mean_and_stddev(played)} over {played['episodes']} episodes"
    name = repo.partition("/")[2]
    values, defaults = config.model_dump(mode="json", exclude=set(OF_ONE_START)), type(config)().model_dump(mode="json")
    address, chosen = f"{SCHEME}{repo}", ', which="best"' if which == "best" else ""
    lines = [
        "---",
        yaml.safe_dump(metadata, sort_keys=False).rstrip(),
        "---",
        "",
        f"# {env} with {algorithm}",
        "",
        "A policy trained with asyncrl.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {title} | {text} |" for title, text in rows.items()),
        "",
    ]
    if (folder / PLOT).exists():
        lines += [f"![Returns of training episodes]({PLOT})", ""]
    if (folder / VIDEO).exists():
        lines += [f'<video src="{VIDEO}" controls autoplay loop></video>', ""]
    lines += [
        "## Use it",
        "",
        "```python",
        "from asyncrl import load_policy",
        "",
        f'policy = load_policy("{address}"{chosen})',
        "action = policy.act(observation)",
        "```",
        "",
        "```bash",
        f"asyncrl evaluate {address}" + (" --checkpoint=best" if which == "best" else ""),
        f"asyncrl pull --repo={repo} --experiment={name}",
        f"asyncrl train --experiment={name} --train_for_env_steps={2 * max(newest_env_steps, 1)}",
        "```",
        "",
        "Weights are safetensors files, so loading them runs no code. The environment, and modules that the settings "
        "name, are those of your machine.",
        "",
        "## Settings that differ from the defaults",
        "",
        "```yaml",
        dump_mapping({name: value for name, value in values.items() if value != defaults[name]}).rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _kinds(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What a policy did with sampled and with deterministic actions; a policy without noise has only the latter."""
    other = {"deterministic": result["deterministic"]} if "deterministic" in result else {}
    return {result["actions"]: result, **other}


def _metric(kind: str, result: Mapping[str, Any], policy_idx: int, num_policies: int) -> dict[str, Any]:
    name = "mean_reward" if num_policies == 1 else f"mean_reward of policy {policy_idx}"
    value = _mean_and_stddev(result)
    return {"type": "mean_reward", "value": value, "name": f"{name}, {kind} actions", "verified": False}


def _mean_and_stddev(result: Mapping[str, Any]) -> str:
    """The form in which leaderboards of the Hub read a return."""
    stddev = result["std_reward"]
    return f"{result['mean_reward']:.2f}" + ("" if stddev is None else f" +/- {stddev:.2f}")
