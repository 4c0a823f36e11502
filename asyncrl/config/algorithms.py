"""Algorithms as records: what each collects, with which settings, and which functions act and train.

This module imports no torch. So the records of the package name their functions as text, `module:function`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from asyncrl.config.errors import Problem, UsageError
from asyncrl.config.hooks import hooks, load
from asyncrl.config.user_modules import import_user_module

if TYPE_CHECKING:
    from asyncrl.config.schema import TrainConfig

_SAC_LEARNER = "asyncrl.learner.sac:SacLearner"

Function = Callable[..., Any] | str
"""A function, or where it is: `module:function`."""


@dataclass(frozen=True)
class Algorithm:
    """A learning algorithm. `docs/custom.md` shows how to add one.

    Attributes:
        name: for `--algo` after `register_algorithm`, and in names of runs and messages.
        collects: `trajectories`, each trained on once it is complete (`asyncrl.learner.on_policy`), or single steps
            that a `replay` keeps (`asyncrl.learner.replay_learner`).
        settings: subclass of `TrainConfig` that adds the algorithm's own settings; None if it has none.
        defaults: values of other settings, by name. Files and flags override them. They override presets, which were
            made for the algorithms of the package.
        loss: with trajectories, `loss(parameters, values, batch, distribution, config)`: the `LossMetrics` of a
            minibatch (`asyncrl.algorithms.losses`).
        array_policy_loss: an accelerator, `array_policy_loss(log_prob, old_log_prob, advantages, config)`: the policy
            part of the same loss and its gradient, in NumPy. Give it only if `loss` is this part and
            `losses.with_common_losses`. None: every step is computed by autograd.
        uses_ratio: the loss multiplies advantages by the probability ratio to `batch.log_prob`. Such a loss can have
            the decoupled objective, and V-trace's weights do not multiply its advantages. Hogwild workers make several
            passes over a rollout only with such a loss.
        fits_cuda_graph: `loss` does the same operations for each minibatch and waits for no value on the device.
        make_learner: with a replay, `make_learner(model, config, spec, device, storage)`: an object with the interface
            of `asyncrl.learner.replay_learner.ReplayLearner`. With trajectories, in place of `loss`,
            `make_learner(model, config, device, storage)`: an `asyncrl.learner.on_policy.OnPolicyLearner`.
        make_recurrent_learner: the same with `use_rnn`, for batches of sequences (`asyncrl.contrib.recurrent_replay`);
            None if the algorithm learns from single steps only, or is SAC or TD3.
        make_model: `make_model(spec, config)`: the model that acts; None for `ActorCritic` or, with a replay,
            `SacActor`.
        squashes_actions: the model of `make_model` always squashes continuous actions to their bounds, as `SacActor`
            does.
        runs_on_hogwild: it can be used with `--backend=hogwild`, whose workers train an `ActorCritic` with `loss`, or
            SAC. Not for an algorithm with its own `make_model` or `make_learner`.
        sets_priorities: with a replay, the learner weights transitions, and its `td_errors` are their priorities.
        ignores: settings of its kind of samples that it does not read.
        actions: the actions that it learns: `any`, `choice` (one choice, `Discrete`), or `continuous`.
    """

    name: str
    collects: Literal["trajectories", "replay"] = "trajectories"
    settings: type[TrainConfig] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    loss: Function | None = None
    array_policy_loss: Function | None = None
    uses_ratio: bool = False
    fits_cuda_graph: bool = False
    make_learner: Function | None = None
    make_recurrent_learner: Function | None = None
    make_model: Function | None = None
    squashes_actions: bool = False
    runs_on_hogwild: bool = False
    sets_priorities: bool = False
    ignores: frozenset[str] = frozenset()
    actions: Literal["any", "choice", "continuous"] = "any"

    @property
    def has_other_learner_than_sac(self) -> bool:
        """Whether the learner is one of the package's, but not that of SAC."""
        function = self.make_learner
        module = function.partition(":")[0] if isinstance(function, str) else getattr(function, "__module__", "")
        return module.startswith("asyncrl.") and module != _SAC_LEARNER.partition(":")[0]

    def __post_init__(self) -> None:
        """Raises ValueError if a function or the default of a setting is missing, or if parts do not fit together."""
        needed = "loss or make_learner" if self.collects == "trajectories" else "make_learner"
        if self.make_learner is None and (self.loss is None or self.collects == "replay"):
            raise ValueError(f"the algorithm {self.name} collects {self.collects}, so it needs {needed}")
        if self.runs_on_hogwild and (self.make_model is not None or self.make_learner not in (None, _SAC_LEARNER)):
            raise ValueError(f"the algorithm {self.name} has its own model or learner: Hogwild workers do not use it")
        fields = {} if self.settings is None else self.settings.model_fields
        without_default = [name for name, field in fields.items() if field.is_required()]
        if without_default:
            raise ValueError(f"the algorithm {self.name} has settings without defaults: {', '.join(without_default)}")


_OFF_POLICY: dict[str, Any] = {
    "encoder_mlp_layers": [256, 256],
    "nonlinearity": "relu",
    "policy_initialization": "torch_default",
    "max_grad_norm": 0.0,
    "adam_eps": 1e-8,
    "normalize_input": False,
}
"""Defaults that SAC, TD3 and DQN share."""

_algorithms = {
    record.name: record
    for record in (
        Algorithm(
            "ppo",
            loss="asyncrl.algorithms.ppo:ppo_loss",
            array_policy_loss="asyncrl.learner.fast.array_update:ppo_policy_loss",
            uses_ratio=True,
            fits_cuda_graph=True,
            runs_on_hogwild=True,
        ),
        Algorithm(
            "a2c",
            # Without a ratio to clip, samples are used once, in larger minibatches.
            defaults={"batch_size": 512, "num_batches_per_epoch": 4, "num_epochs": 1, "target_kl": None},
            loss="asyncrl.algorithms.a2c:a2c_loss",
            array_policy_loss="asyncrl.learner.fast.array_update:a2c_policy_loss",
            fits_cuda_graph=True,
            runs_on_hogwild=True,
        ),
        Algorithm(
            "sac",
            collects="replay",
            # Haarnoja et al. 2018 (arXiv:1812.05905), appendix D.
            defaults={**_OFF_POLICY, "batch_size": 256, "initial_stddev": 1.0},
            make_learner=_SAC_LEARNER,
            runs_on_hogwild=True,
        ),
        Algorithm(
            "td3",
            collects="replay",
            # Fujimoto et al. 2018 (arXiv:1802.09477), with the sizes and the learning rate of SAC.
            defaults={**_OFF_POLICY, "batch_size": 256, "policy_delay": 2},
            make_learner="asyncrl.learner.td3:Td3Learner",
            make_model="asyncrl.models.td3:DeterministicActor",
            squashes_actions=True,
            actions="continuous",
        ),
        Algorithm(
            "dqn",
            collects="replay",
            defaults={**_OFF_POLICY, "batch_size": 128, "updates_per_env_step": 0.5, "max_grad_norm": 10.0},
            make_learner="asyncrl.learner.dqn:DqnLearner",
            make_model="asyncrl.models.dqn:QNetwork",
            sets_priorities=True,
            actions="choice",
        ),
    )
}
BUILT_IN = tuple(_algorithms)
_registered_by: dict[str, str] = {}
"""The module that registered each other algorithm."""

SHORT_NAMES: dict[str, dict[str, Any]] = {
    "a3c": {"algo": "a2c", "backend": "hogwild", "hogwild_mode": "synced"},
}
"""Other values that may be given for `algo`, and the settings that each stands for."""


def spell_out(values: dict[str, Any]) -> list[Problem]:
    """Replaces the name of an algorithm, in any case, by the settings that it means.

    Returns a problem for each of these settings that has another value.
    """
    name = str(values.get("algo")).lower()
    if name in (*BUILT_IN, *hooks("ALGORITHMS")):
        values["algo"] = name
    meant, problems = SHORT_NAMES.get(name, {}), []
    for other, value in meant.items():
        if other != "algo" and values.get(other, value) != value:
            text = f"--algo={name} means --{other}={value}, but --{other}={values[other]} was given."
            problems.append(Problem(("algo", other), text))
    values.update(meant)
    return problems


def register_algorithm(algorithm: Algorithm) -> Algorithm:
    """Makes `--algo=NAME` possible for runs that import the calling module (`--import_modules`).

    Raises:
        ValueError: the name belongs to an algorithm of the package, or is the form of an import.
    """
    if algorithm.name.lower() in (*BUILT_IN, *SHORT_NAMES, *hooks("ALGORITHMS")) or ":" in algorithm.name:
        raise ValueError(f"an algorithm cannot have the name {algorithm.name}: choose another name")
    _algorithms[algorithm.name] = algorithm
    _registered_by[algorithm.name] = str(sys._getframe(1).f_globals.get("__name__"))
    return algorithm


def find_algorithm(name: str, import_modules: Sequence[str] = ()) -> Algorithm:
    """The algorithm that `algo` names: of the package, a registered one, or `module:NAME`, a record in a module.

    Args:
        name: value of `algo`.
        import_modules: modules to import if the name is not known yet.

    Raises:
        UsageError: there is no such module or no such algorithm.
    """
    if name not in _algorithms:
        for module in import_modules:
            import_user_module(module)
    if name in _algorithms:
        return _algorithms[name]
    of_features = hooks("ALGORITHMS")
    if name.lower() in of_features:
        algorithm: Algorithm = load(of_features[name.lower()])
        return algorithm
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join((*_algorithms, *of_features))
        raise UsageError(f"There is no algorithm {name} (known: {known}).")
    found = getattr(import_user_module(module), attribute, None)
    if not isinstance(found, Algorithm):
        raise UsageError(f"--algo={name}: the module {module} has no asyncrl.Algorithm with the name {attribute}.")
    return found


def module_that_registered(name: str) -> str | None:
    """The module that registered an algorithm, or that its name `module:NAME` names; None for one of the package."""
    module, colon, _ = name.partition(":")
    return module if colon else _registered_by.get(name)


def known_names() -> list[str]:
    """Values of `algo` that are possible now."""
    return [*_algorithms, *hooks("ALGORITHMS"), *SHORT_NAMES]


def imported(function: Function | None) -> Callable[..., Any]:
    """The function itself, of one that a record gives or names."""
    if callable(function):
        return function
    loaded: Callable[..., Any] = load(str(function))
    return loaded
