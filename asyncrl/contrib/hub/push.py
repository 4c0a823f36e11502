"""`asyncrl push`: uploads a run to the Hugging Face Hub, with a page that describes it.

    asyncrl push my_run --repo=user/name

Log in first (`hf auth login`, or HF_TOKEN). `asyncrl.contrib.hub.repository` lists the files of a repository.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

import asyncrl
from asyncrl.commands.run_argument import RunCommand, RunOptions
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option
from asyncrl.config.value_types import GivenPath
from asyncrl.contrib.hub import repository as hub
from asyncrl.contrib.hub.model_card import format_card
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.locating import checkpoint_folders, find_checkpoint_of, find_run
from asyncrl.storage.run_folder import RunFolder


class _Options(RunOptions):
    repo: str | None = option(None, "repository on the Hub, user/name; made if missing")
    checkpoint: str | None = option(
        None,
        "what is published: best (uploaded with the newest, from which a run resumes), newest, or a checkpoint's name "
        "[default best if the run has one, else newest]",
    )
    episodes: NonNegativeInt = option(20, "episodes to play for the return on the page, 0 for none [default 20]")
    video: GivenPath | None = option(
        None, "video to show on the page, .mp4 [default the newest in the run's folder videos]"
    )
    license: str | None = option(None, "licence in the page's metadata, such as mit [default none]")
    private: bool = option(False, "make a new repository private")
    revision: str | None = option(None, "branch to upload to, which must exist [default main]")
    out: GivenPath | None = option(None, "write the files to this new folder and upload nothing")


class _Push(RunCommand[_Options]):
    usage = "asyncrl push RUN --repo=USER/NAME"
    description = "Upload a run to the Hugging Face Hub: settings, records, plot, checkpoint, and a page about them."
    examples = (
        "asyncrl push my_run --repo=user/name",
        "asyncrl push my_run --repo=user/name --private --checkpoint=newest --episodes=0",
        "asyncrl push my_run --repo=user/name --out=look_first",
    )
    model = _Options

    def run(self, options: _Options) -> int:
        try:
            _push(options)
        except EnvironmentFailed as error:
            raise EnvironmentFailed(*error.args, "--episodes=0 uploads without playing.") from error
        return 0


def _push(options: _Options) -> None:
    if options.named_run is None or options.repo is None:
        raise UsageError("Give the run and where it goes: asyncrl push RUN --repo=USER/NAME.")
    repo, revision = hub.parse_address(options.repo)
    if revision is not None:
        raise UsageError(f"--repo={options.repo} names a revision: give --repo={repo} --revision={revision}.")
    if options.video is not None and (options.video.suffix != ".mp4" or not options.video.is_file()):
        raise UsageError(f"--video={options.video} is not possible: expected an .mp4 file.")
    if options.out is not None and options.out.exists():
        raise UsageError(f"--out={options.out} exists: give a new folder.")
    client = None if options.out is not None else hub.library()
    run = find_run(options.named_run, options.train_dir)
    with tempfile.TemporaryDirectory(prefix="asyncrl-push-") as name:
        folder = Path(name) / "files"
        folder.mkdir()
        _collect(run, folder, repo, options)
        if client is None:
            assert options.out is not None
            try:
                shutil.copytree(folder, options.out)
            except OSError as error:
                raise UsageError(f"Cannot write {options.out}: {error.strerror or error}.") from error
            print(f"wrote {options.out}", flush=True)
            return
        try:
            api = client.HfApi(library_name="asyncrl", library_version=asyncrl.__version__)
            api.create_repo(repo, private=options.private or None, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                revision=options.revision,
                commit_message=f"Run {run.resolve().name}",
                delete_patterns=[hub.OLD_CHECKPOINTS, hub.PLOT, hub.VIDEO, hub.RESULTS],
            )
        except Exception as error:  # of several libraries; what they have in common is `Exception`
            raise UsageError(f"Cannot upload to {hub.SCHEME}{repo}: {hub.explain(error)}") from error
    print(f"{commit.repo_url}\nexactly this version: {hub.SCHEME}{repo}@{commit.oid}", flush=True)


def _collect(run: Path, folder: Path, repo: str, options: _Options) -> None:
    """Copies and makes all files of the repository."""
    config = RunFolder(run).read_config()
    published, uploaded, which = _choose(run, config.num_policies, options.checkpoint)
    video = options.video or max((run / "videos").rglob("*.mp4"), key=lambda path: path.stat().st_mtime, default=None)
    try:
        _copy(run, folder, uploaded, video)
    except OSError as error:
        reason = f"Cannot copy {error.filename}: {error.strerror or error}"
        raise UsageError(f"{reason}. A run that is training may have deleted it: give the command again.") from error
    # Not those in the run's folder: a run that is training deletes old ones.
    copies = [folder / place for place, path in uploaded.items() if path in published]
    results = [_evaluate(path, options.episodes) for path in copies] if options.episodes > 0 else []
    (folder / hub.RESULTS).unlink(missing_ok=True)
    if results:
        (folder / hub.RESULTS).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    _draw(run, folder / hub.PLOT)
    env_steps = checkpoints.saved_env_steps(copies[0])
    newest = max(checkpoints.saved_env_steps(folder / place) for place in uploaded)
    card = format_card(repo, config, env_steps, newest, which, results, folder, options.license)
    (folder / hub.CARD).write_text(card, encoding="utf-8")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"{path.stat().st_size:>12,}  {path.relative_to(folder)}")


def _copy(run: Path, folder: Path, uploaded: Mapping[Path, Path], video: Path | None) -> None:
    for name in hub.RUN_FILES:
        if (run / name).exists() and name != "environment.json":
            shutil.copyfile(run / name, folder / name)
    if (run / "environment.json").exists():  # without the command, whose paths may tell a user's name
        about = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        about.pop("command", None)
        (folder / "environment.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    for place, path in uploaded.items():
        target = folder / place
        target.mkdir(parents=True)
        for file in checkpoints.SHARED_FILES:
            shutil.copyfile(path / file, target / file)
    if video is not None:
        shutil.copyfile(video, folder / hub.VIDEO)


def _choose(run: Path, num_policies: int, named: str | None) -> tuple[list[Path], dict[Path, Path], str]:
    """The checkpoints that are published, one of each policy; all by their places in the repository; their name."""
    folders = checkpoint_folders(run / "checkpoints", num_policies)
    newest = [path for folder in folders if (path := checkpoints.latest(folder)) is not None]
    best = [path for folder in folders if (path := checkpoints.latest(folder / checkpoints.BEST)) is not None]
    if len(newest) < len(folders):
        raise UsageError(f"{run} has no checkpoint yet: let it train until it has saved one.")
    if named is None:
        named = "best" if len(best) == len(folders) else "newest"
    if named == "newest":
        published = newest
    elif named == "best":
        if len(best) < len(folders):
            raise UsageError(f"{run} has no best checkpoint yet: give --checkpoint=newest.")
        published = best
    else:
        published = newest = [find_checkpoint_of(run, named, policy_idx) for policy_idx in range(len(folders))]
    places = [folder.relative_to(run) for folder in folders]
    uploaded = {place / path.name: path for place, path in zip(places, newest, strict=True)}
    if named == "best":
        uploaded |= {place / checkpoints.BEST / path.name: path for place, path in zip(places, best, strict=True)}
    return published, uploaded, named


def _evaluate(path: Path, episodes: int) -> dict[str, Any]:
    """Plays the policy, with sampled and then with deterministic actions; returns the results as JSON values."""
    import torch

    from asyncrl.evaluation.episodes import evaluate
    from asyncrl.evaluation.team import load_team
    from asyncrl.inference.policy import load_policy

    torch.set_num_threads(1)
    policy = load_policy(path)

    def play(deterministic: bool) -> dict[str, Any]:
        team = load_team(policy, path, "cpu", 0)
        result = evaluate(
            policy, episodes=episodes, deterministic=deterministic, others=team.others, choose=team.choose
        ).for_agents(team.own)
        print(f"{'deterministic' if deterministic else 'sampled'} actions: {result.to_text()}", flush=True)
        return {**result.to_data(), "checkpoint": path.name, "env_steps": checkpoints.saved_env_steps(path)}

    if not policy.is_stochastic:
        return {**play(True), "actions": "deterministic"}
    return {**play(False), "actions": "sampled", "deterministic": play(True)}


def _draw(run: Path, path: Path) -> None:
    """Draws the training if matplotlib is there and an episode has ended."""
    if importlib.util.find_spec("matplotlib") is None:
        print('no plot: matplotlib is not installed (pip install -e ".[plot]")')
        return
    from asyncrl.analysis import drawing, figures
    from asyncrl.analysis.records import read_runs

    try:
        (found,) = read_runs([run], print)
        drawing.draw_trial(figures.make_trial(found, None), path)
    except UsageError as error:
        print(f"no plot: {error}")


main = _Push().main
