"""Settings that are possible but probably a mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncrl.config.dependencies import missing_for
from asyncrl.config.errors import Problem, make_problem
from asyncrl.config.hooks import hooks, load
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig

_COUNTERPARTS = {"ent_coef": "entropy_loss_coeff", "entropy_loss_coeff": "ent_coef"}
"""Settings with the same purpose for different algorithms."""


def find_warnings(config: TrainConfig, plan: ResourcePlan, given: Iterable[str]) -> list[Problem]:
    """Settings that are possible but probably a mistake.

    Args:
        config: the settings.
        plan: the resources resolved from them.
        given: settings that the user gave; only these are reported if they have no effect.
    """
    return [
        *_warn_unread(config, plan, given),
        *_warn_resources(plan),
        *(warning for find in hooks("WARNINGS").values() for warning in load(find)(config, plan)),
        *_warn_learning(config, plan),
    ]


def _warn_unread(config: TrainConfig, plan: ResourcePlan, given: Iterable[str]) -> Iterator[Problem]:
    unread: dict[str, list[str]] = {}
    for name in given:
        missing = missing_for(name, config, plan.inference_mode)
        if missing is not None and getattr(config, name) != TrainConfig.model_fields[name].default:
            unread.setdefault(missing, []).append(name)
    if unread:
        listed = "; ".join(f"--{', --'.join(names)} (needs {missing})" for missing, names in unread.items())
        names = tuple(name for names in unread.values() for name in names)
        counterparts = tuple(f"--{_COUNTERPARTS[name]}" for name in names if name in _COUNTERPARTS)
        yield Problem(names, f"No effect in this run: {listed}.", counterparts)


def _warn_resources(plan: ResourcePlan) -> Iterator[Problem]:
    collects_in_turn = plan.hogwild is None and not plan.fixed_lag and plan.num_policies == 1
    if plan.serial_mode and plan.async_rl and collects_in_turn:
        text = "--async_rl=True has no effect in serial mode, which collects and trains in turn."
        yield make_problem("async_rl serial_mode", text, "--async_rl=False")
    if not plan.serial_mode and plan.num_local_workers > plan.cores:
        collecting = plan.num_local_workers + plan.num_inference_workers
        text = f"{collecting} rollout and inference workers share {plan.cores} cores."
        yield make_problem("num_workers", text, f"--num_workers={plan.cores}")
    if plan.learner_threads > plan.cores:
        text = f"--learner_threads={plan.learner_threads} is more than the {plan.cores} cores."
        yield make_problem("learner_threads", text, f"--learner_threads={plan.cores}")


def _warn_learning(config: TrainConfig, plan: ResourcePlan) -> Iterator[Problem]:
    if plan.replay is not None:
        is_own = missing_for("prioritized_replay", config, plan.inference_mode) is None  # a registered algorithm
        if is_own and config.prioritized_replay and not plan.replay.is_prioritized:
            text = f"--prioritized_replay=True has no effect: the learner of --algo={config.algo} sets no priorities."
            yield make_problem("prioritized_replay algo", text, "--algo=dqn")
        if plan.replay.warmup_env_steps >= plan.train_for_env_steps // plan.num_ranks:
            steps, ranks = plan.train_for_env_steps, plan.num_ranks
            of_each = f" / {ranks} ranks = {steps // ranks}" if ranks > 1 else ""
            text = (
                f"--train_for_env_steps={steps}{of_each} is within the warm-up "
                f"(--warmup_env_steps={plan.replay.warmup_env_steps}): nothing will be trained."
            )
            yield make_problem("train_for_env_steps warmup_env_steps", text)
    elif plan.hogwild is None:
        is_late = plan.async_rl and not plan.serial_mode and not plan.fixed_lag
        if is_late and plan.max_policy_lag < plan.steady_lag_bound:
            text = (
                f"--max_policy_lag={plan.max_policy_lag} drops many samples: they are normally up to "
                f"{plan.steady_lag_bound} optimizer steps old."
            )
            yield make_problem("max_policy_lag", text, f"--max_policy_lag={plan.steady_lag_bound}")
        if plan.dataset_size > plan.train_for_env_steps:
            text = (
                f"--train_for_env_steps={plan.train_for_env_steps} is less than one dataset, {plan.batch_size} x "
                f"{plan.num_batches_per_epoch} = {plan.dataset_size} samples: the run ends after the first."
            )
            yield make_problem("train_for_env_steps batch_size num_batches_per_epoch", text)
        if config.algorithm.loss is not None and not config.algorithm.uses_ratio and config.num_epochs > 1:
            text = f"{config.algorithm.name.upper()} should use each sample once: set --num_epochs=1."
            yield make_problem("num_epochs algo", text)
        for name in ("target_kl", "recompute_advantages") if config.num_epochs == 1 else ():
            if getattr(config, name) not in (None, TrainConfig.model_fields[name].default):
                text = f"--{name} has no effect with --num_epochs=1: there is one pass over each dataset."
                yield Problem((name, "num_epochs"), text, ("--num_epochs=2",))
    if config.learning_rate == 0:
        yield Problem(("learning_rate",), "--learning_rate=0: the policy will not change.")
