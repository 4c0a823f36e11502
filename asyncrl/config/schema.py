"""The one schema of a run: every setting, its type, range, default and meaning.

`asyncrl.config.other_names` lists the settings that have the names of other libraries. `auto` values stay `auto` here;
`asyncrl.config.plan` resolves them into the `ResourcePlan` that the roles read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from asyncrl.config.algorithms import Algorithm, find_algorithm, spell_out
from asyncrl.config.errors import ConfigError, Problem, UsageError
from asyncrl.config.value_types import (
    ActionMapping,
    AlgorithmName,
    AtLeastOne,
    Auto,
    AutoPositiveInt,
    Beta,
    CallbackNames,
    EnvArguments,
    EnvSource,
    Fraction,
    ImageChannels,
    NonNegativeFloat,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Seed,
)

Progress = Literal["auto", "dashboard", "live", "lines"]

ATARI_FRAMESKIP = 4
"""Frames of a game for which an action is repeated, unless `env_kwargs` has another number."""

OF_ONE_START = ("train_dir", "experiment", "restart_behavior", "train_for_seconds", "quiet", "progress", "profile")
"""Settings of one start of the program: config.yaml does not contain them, and a resumed run does not inherit them."""

NEEDED_BY_TENSORS: dict[str, Any] = {
    "serial_mode": True,
    "async_rl": False,
    "num_workers": 1,
    "backend": "actor_learner",
    "debug_forced_lag": 0,
}
"""Settings of every run with env_backend=tensor; the user may give the same values, but no others."""

_BEFORE_THEY_WERE_SETTINGS: dict[str, Any] = {"action_unit": "raw", "ppo_objective": "clip", "target_kl": None}
"""Values for runs saved before these settings existed, where today's default changes the behaviour."""

_NO_LONGER_SETTINGS = {"cluster_bandwidth_mbit"}
"""Settings of earlier versions in saved runs that decided nothing about training; they are left out."""


def _section(name: str) -> Callable[[Any, str], Any]:
    return lambda default, description: Field(
        default=default, description=description, json_schema_extra={"section": name}
    )


_run, _folder, _evaluation, _roles = map(_section, ("run", "folder", "evaluation", "roles"))
_samples, _learning, _replay, _hogwild = map(_section, ("samples", "learning", "replay", "hogwild"))
_model, _policies, _failures, _output = map(_section, ("model", "policies", "supervision", "watching"))
_self_play, _cluster = map(_section, ("self_play", "cluster"))


class TrainConfig(BaseModel):
    """All settings of a training run; immutable, and every argument is optional.

    The settings are those of the command line, with the same names, ranges and defaults;
    `python -m asyncrl.train --help=all` describes each. Numbers and truth values may be given as text. A setting that
    is not given comes from the saved run if the run is resumed, else from the preset for the environment and from the
    defaults of the algorithm; `RunResult.config` has the final values.

    Example:
        config = TrainConfig(env="Humanoid-v5", train_for_env_steps=1_000_000, num_workers=8)
        longer = config.model_copy(update={"train_for_env_steps": 2_000_000})

    Raises:
        asyncrl.UsageError: settings are unknown or have values that are not possible; one line for each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, validate_default=True)

    if not TYPE_CHECKING:  # type checkers know the signature of the fields

        def __new__(cls, *positional, **_):
            """Refuses settings without their names."""
            if positional:
                raise UsageError(f"TrainConfig takes settings by name: give TrainConfig(env={positional[0]!r}).")
            return super().__new__(cls)

    @classmethod
    def from_saved(cls, values: Any) -> TrainConfig:
        """The settings that a run or a checkpoint was saved with, perhaps by an earlier version.

        Raises:
            UsageError: settings are unknown or have values that are not possible, or the module of the algorithm cannot
                be imported.
        """
        if not isinstance(values, dict):
            raise UsageError("There are no settings: expected lines of `name: value`.")
        name = str(values.get("algo", "ppo"))
        try:
            algorithm = find_algorithm(name, values.get("import_modules", ()))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"--algo={name}: a module raised {type(error).__name__}: {error}") from error
        if values.get("compile") == "inductor":  # removed; it computed the same as plain updates
            values = {**values, "compile": "off"}
        kept = {name: value for name, value in values.items() if name not in _NO_LONGER_SETTINGS}
        return (algorithm.settings or cls).model_validate({**_BEFORE_THEY_WERE_SETTINGS, **kept})

    @model_validator(mode="wrap")
    @classmethod
    def _explain_refusals(cls, values: Any, validate: ModelWrapValidatorHandler[TrainConfig]) -> TrainConfig:
        """Raises every mistake as the sentence that the command line has for it, in place of pydantic's error.

        A short name of an algorithm, as `a3c`, is replaced by the settings that it means.
        """
        if isinstance(values, dict):
            values = dict(values)
            if problems := spell_out(values):
                raise ConfigError(problems)
        try:
            return validate(values)
        except ValidationError as error:
            if not isinstance(values, dict):
                raise
            details = {str(detail["loc"][0]) if detail["loc"] else "": detail for detail in error.errors()}
        from asyncrl.config.flags import refused_value, unknown_name
        from asyncrl.config.settings import all_settings

        known = all_settings(cls)
        refused = []
        for name, detail in details.items():
            reason = str(detail.get("ctx", {}).get("error", ""))
            if not name or (name == "algo" and not reason.startswith("There is no algorithm")):  # the check says why
                refused.append(Problem((name,) if name else (), reason or detail["msg"]))
            elif name in known:
                value = values.get(name, known[name].default)
                more = "" if name == "algo" else reason  # which names the algorithms, as what is expected does
                refused.append(refused_value(name, value, known[name].expected, reason=more))
            else:
                refused.append(unknown_name(name, known, f"There is no setting {name}"))
        raise ConfigError(refused)

    env: EnvSource = _run("", "Gymnasium id, or MODULE:Id or MODULE:function of a module that registers or makes it")
    env_kwargs: EnvArguments = _run({}, "keyword arguments for the environment, as JSON")
    env_backend: Literal["auto", "gym", "gym_vector", "envpool", "tensor"] = _run(
        "auto",
        "how environments are stepped: one by one (gym); several at once, by the vectorized implementation that is "
        "registered with Gymnasium or that gives tensors (gym_vector), by EnvPool under its own ids (envpool), or by "
        "one that takes and returns tensors on the learner's device (tensor), in one process. auto is tensor for an "
        "environment that exists only so, gym_vector where the vectorized implementation has the same spaces, else gym",
    )
    atari_preprocessing: bool = _run(
        True,
        "for ids ALE/*: stack 4 grey frames of 84 x 84, repeat actions for 4 frames, start with no-ops; in training "
        "a lost life ends the episode",
    )
    import_modules: list[str] = _run(
        [], "modules that register your networks and algorithms; every process imports them first"
    )
    algo: AlgorithmName = _run(
        "ppo", "learning algorithm, or MODULE:NAME for one that a module has, or a name that a module registers"
    )
    backend: Literal["actor_learner", "hogwild"] = _run(
        "actor_learner",
        "rollout workers and a learner (actor_learner), or workers that each collect and train one shared set of "
        "parameters (hogwild); --algo=a3c is short for --backend=hogwild --algo=a2c --hogwild_mode=synced",
    )
    seed: Seed = _run(0, "seed of weights, exploration and environments, each of which gets a seed derived from it")
    train_for_env_steps: PositiveInt = _run(
        10_000_000,
        "stop after training on this many environment steps in total; a resumed run counts its earlier steps",
    )
    train_for_seconds: PositiveFloat | None = _run(
        None,
        "stop after this many seconds of training in total; a resumed run has no limit unless the flag is given again",
    )

    train_dir: PathText = _folder("train_dir", "folder that holds all runs")
    experiment: PathText | None = _folder(None, "name of the run's folder; by default made of env, algo and time")
    restart_behavior: Literal["resume", "restart", "overwrite"] = _folder(
        "resume",
        "what to do if the run exists: resume it with its settings from its newest checkpoint; restart at step 0 and "
        "keep the old run as NAME_old; or overwrite, which deletes the old run",
    )
    save_every_s: PositiveFloat = _folder(120.0, "seconds between checkpoints; one is always saved at the end")
    save_every_env_steps: PositiveInt | None = _folder(None, "environment steps between additional checkpoints")
    keep_checkpoints: PositiveInt = _folder(2, "how many of the newest checkpoints are kept")
    save_milestones_s: PositiveFloat | None = _folder(
        None, "seconds between checkpoints in checkpoints/milestones, which are never deleted"
    )
    save_best_metric: Literal["auto", "none", "eval", "train"] = _folder(
        "auto",
        "keep the checkpoint with the best mean return of an evaluation (eval) or of the last 100 training episodes "
        "(train) in checkpoints/best; auto takes eval where eval_every_env_steps is set",
    )
    checkpoint_resets: bool = _folder(
        False,
        "serial mode: at every checkpoint of save_every_env_steps, reset environments and random numbers to a state "
        "that follows from the seed and the steps; a resumed run then equals an uninterrupted one to the bit",
    )
    report_every_s: PositiveFloat = _folder(5.0, "seconds between records in TensorBoard and metrics.jsonl")
    init_from: PathText | None = _folder(
        None,
        "run or checkpoint, by path, name or hf://user/name, whose weights, statistics and optimizer to start from, "
        "at step 0; with several policies a run, each policy from the one with its number",
    )

    eval_every_env_steps: PositiveInt | None = _evaluation(
        None, "environment steps between evaluations of the policy, or of each policy, which run in a separate process"
    )
    eval_episodes: PositiveInt = _evaluation(10, "episodes of an evaluation")
    eval_num_envs: NonNegativeInt | Auto = _evaluation(
        "auto",
        "environments of tensors: how many of the training simulator, beside those that train, play evaluations; auto "
        "is eval_episodes, and 0 makes a second simulator for one environment",
    )
    eval_deterministic: bool = _evaluation(
        False, "evaluate and record with the most likely actions instead of sampled ones"
    )
    video_every_env_steps: PositiveInt | None = _evaluation(
        None,
        "environment steps between videos of the policy, or of each policy, in videos/: one episode, recorded by a "
        "process of its own; the first is of the untrained policy, the last of the final one",
    )
    video_length: PositiveInt = _evaluation(1000, "longest video, in environment steps")

    async_rl: bool = _roles(True, "collect samples while training (True), or collect and train in turn (False)")
    serial_mode: bool = _roles(False, "run everything in one process, for debuggers; repeatable to the bit on a CPU")
    num_batches_to_accumulate: PositiveInt = _roles(
        1, "async: collecting pauses when this many datasets wait or are being trained"
    )
    fixed_lag: bool = _roles(
        False,
        "async: every sample is exactly one dataset old; all workers collect a dataset while the one before is "
        "trained, with weights that do not change meanwhile, and the faster side waits",
    )
    num_workers: AutoPositiveInt = _roles("auto", "rollout worker processes on this machine")
    num_envs_per_worker: AutoPositiveInt = _roles("auto", "environments in each rollout worker")
    worker_num_splits: AutoPositiveInt = _roles(
        "auto", "groups of a worker's environments that take turns: one steps while another waits for actions"
    )
    inference_mode: Literal["auto", "local", "central"] = _roles(
        "auto", "where actions are computed: in each rollout worker, or by inference workers in batches"
    )
    num_inference_workers: AutoPositiveInt = _roles(
        "auto", "inference worker processes (central inference); auto is one for each of --inference_devices"
    )
    inference_max_wait_ms: NonNegativeFloat = _roles(0.3, "longest wait in ms of an inference worker for a full batch")
    device: str = _roles("auto", "device of learner and central inference: auto, cpu, cuda or cuda:N")
    learner_device: str = _roles("auto", "device of the learner alone; auto is that of --device")
    inference_devices: tuple[str, ...] = _roles((), "devices of inference workers, assigned in turn; [] is --device")
    precision: Literal["auto", "float32", "bf16"] = _roles(
        "auto",
        "number format of matrix products in training; weights and losses are always float32. auto is bf16 for SAC "
        "and TD3 where the hardware computes it faster, otherwise float32",
    )
    compile: Literal["auto", "off", "cuda_graph"] = _roles(
        "auto",
        "run each update, and each batch of central inference, as one CUDA graph (cuda_graph); auto is cuda_graph on a "
        "CUDA device, but for updates of several ranks, and off on a CPU",
    )
    learner_threads: AutoPositiveInt = _roles("auto", "CPU threads of the learner")
    max_policy_lag: PositiveInt = _roles(
        1000, "trajectories older than this many policy versions (optimizer steps) are dropped before training"
    )
    debug_forced_lag: NonNegativeInt = _roles(0, "publish weights this many optimizer steps late, for tests")
    debug_skip_training: bool = _roles(False, "collect trajectories without training, to measure the speed of sampling")

    cluster: Literal["none", "ray"] = _cluster("none", "whether rollout workers run on other machines too, by Ray")
    ray_address: str = _cluster(
        "auto", "HOST:PORT of the Ray cluster; auto is RAY_ADDRESS, or the cluster that this machine joined last"
    )
    num_remote_hosts: PositiveInt = _cluster(1, "pools of rollout workers, which Ray spreads over the machines")
    num_workers_per_remote_host: PositiveInt = _cluster(
        1, "rollout workers of a pool, for each of which Ray keeps a CPU"
    )
    remote_slots_in_flight: PositiveInt = _cluster(
        2, "async: slots that a remote worker holds at a time; it fills one while the others travel"
    )
    remote_rows_in_flight: PositiveInt = _cluster(
        16, "async, replay: rows, one step of each of its environments, that a remote split may be ahead of the learner"
    )
    ray_resources: dict[str, float] = _cluster({}, "custom resources of Ray that a pool takes, as JSON")
    ray_runtime_env: dict[str, Any] = _cluster({}, "Ray's runtime environment for the pools, as JSON")
    remote_start_timeout: PositiveFloat = _cluster(600.0, "seconds in which Ray must have placed and started a pool")
    cluster_observations: Literal["float32", "float16"] = _cluster(
        "float32",
        "how floating-point observations of other machines travel; float16 halves their bytes and rounds them",
    )

    rollout: PositiveInt = _samples(32, "steps of each environment in one trajectory")
    batch_size: PositiveInt = _samples(128, "samples in a minibatch")
    num_batches_per_epoch: PositiveInt = _samples(16, "minibatches in a dataset, each of batch_size samples")
    num_epochs: PositiveInt = _samples(10, "passes over each dataset")
    shuffle_minibatches: bool = _samples(True, "fill minibatches with samples in random order")
    reward_scale: PositiveFloat = _samples(1.0, "factor on rewards before training")
    reward_clip: PositiveFloat | None = _samples(None, "clip scaled rewards to plus or minus this value")

    recompute_values: bool = _learning(
        True,
        "compute advantages of samples of older policies with values of the current critic, not with those stored when "
        "acting",
    )
    recompute_advantages: bool = _learning(
        False,
        "compute values, advantages and returns again with the current critic before each pass over a "
        "dataset but the first",
    )
    with_vtrace: bool = _learning(
        False, "correct advantages and returns for the age of the samples (V-trace), with values of the current critic"
    )
    vtrace_rho: PositiveFloat = _learning(1.0, "V-trace: upper limit of the weights of temporal differences")
    vtrace_c: PositiveFloat = _learning(1.0, "V-trace: upper limit of the weights of the trace")
    gamma: Fraction = _learning(0.99, "discount factor")
    gae_lambda: Fraction = _learning(0.95, "lambda of generalized advantage estimation")
    learning_rate: NonNegativeFloat = _learning(3e-4, "Adam's learning rate at the start")
    lr_schedule: Literal["constant", "linear_decay", "kl_adaptive_minibatch", "kl_adaptive_epoch"] = _learning(
        "constant", "how the learning rate changes; linear_decay reaches 0 at train_for_env_steps"
    )
    lr_schedule_kl_threshold: PositiveFloat = _learning(0.008, "target KL divergence of the adaptive schedules")
    lr_adaptive_min: PositiveFloat = _learning(1e-6, "lower limit of the learning rate in the adaptive schedules")
    lr_adaptive_max: PositiveFloat = _learning(1e-2, "upper limit of the learning rate in the adaptive schedules")
    adam_eps: PositiveFloat = _learning(1e-6, "Adam's epsilon")
    adam_beta1: Beta = _learning(0.9, "Adam's first momentum coefficient")
    adam_beta2: Beta = _learning(0.999, "Adam's second momentum coefficient")
    max_grad_norm: NonNegativeFloat = _learning(0.5, "clip the norm of the gradient to this; 0 means no clipping")
    ppo_objective: Literal["clip", "decoupled"] = _learning(
        "decoupled",
        "PPO's probability ratio and all KL divergences are from the policy that acted (clip), or from the policy "
        "before training on the dataset, and each sample is weighted by the probability of its action under that "
        "policy, divided by the one when acting (decoupled)",
    )
    behaviour_weight_cap: AtLeastOne = _learning(5.0, "decoupled objective: largest weight of a sample")
    ppo_clip_ratio: PositiveFloat = _learning(0.2, "clip range of PPO's probability ratio")
    final_ppo_clip_ratio: PositiveFloat | None = _learning(
        None, "ppo_clip_ratio at train_for_env_steps, to which it changes linearly; none means that it stays"
    )
    ppo_clip_mode: Literal["symmetric", "reciprocal"] = _learning(
        "symmetric", "clip the ratio to [1-c, 1+c] or to [1/(1+c), 1+c]"
    )
    ppo_clip_value: PositiveFloat | None = _learning(
        None, "clip the change of value predictions to this range; none means no clipping"
    )
    value_loss_coeff: NonNegativeFloat = _learning(0.5, "weight of the value loss")
    entropy_loss_coeff: NonNegativeFloat = _learning(0.0, "weight of the entropy bonus")
    final_entropy_loss_coeff: NonNegativeFloat | None = _learning(
        None, "entropy_loss_coeff at train_for_env_steps, to which it changes linearly; none means that it stays"
    )
    final_stddev: PositiveFloat | None = _learning(
        None,
        "continuous actions: a limit of the standard deviation, which falls in the second half of the run from "
        "initial_stddev to this at train_for_env_steps; none means no limit",
    )
    kl_loss_coeff: NonNegativeFloat = _learning(0.0, "weight of the KL divergence from the ratio's reference policy")
    target_kl: PositiveFloat | None = _learning(
        0.04,
        "leave out the other passes over a dataset after a pass with a larger mean of train/approx_kl; none means "
        "that all passes are made",
    )
    scale_lr: Literal["none", "linear", "sqrt"] = _learning(
        "none", "multiply learning_rate by the number of ranks that train together, or by its square root"
    )
    normalize_advantage: bool = _learning(True, "normalize advantages to mean 0 and deviation 1 before each pass")
    normalize_advantage_over: Literal["minibatch", "dataset"] = _learning(
        "minibatch", "samples over which mean and deviation of advantages are computed"
    )
    normalize_input: bool = _learning(True, "normalize observations with running statistics")
    normalize_returns: bool = _learning(True, "the critic predicts returns normalized with running statistics (PopArt)")

    replay_size: PositiveInt = _replay(1_000_000, "environment steps that the replay holds")
    save_replay: bool = _replay(False, "save the replay in the newest checkpoints; else a resumed run starts with none")
    warmup_env_steps: PositiveInt = _replay(
        5_000,
        "environment steps with random actions before the first update; more, where environments need more for a "
        "first transition or sequence each",
    )
    updates_per_env_step: PositiveFloat = _replay(
        1.0, "updates for each environment step after the warm-up; the learner or the workers wait to keep this ratio"
    )
    replay_ratio_tolerance: NonNegativeFloat = _replay(
        64.0, "async: how many updates the learner may fall behind, in addition to two steps of every environment"
    )
    n_step: PositiveInt = _replay(1, "number of rewards in a target before the bootstrap; fewer at an episode's end")
    tau: PositiveFraction = _replay(0.005, "target critics move by this fraction at each update")
    ent_coef: PositiveFloat | Auto = _replay("auto", "entropy coefficient; auto adapts it to reach target_entropy")
    target_entropy: Annotated[float, Field(allow_inf_nan=False)] | Auto = _replay(
        "auto",
        "target entropy of ent_coef=auto in nats, of actions in [-1, 1]; auto is target_entropy_per_dim for each "
        "continuous dimension, plus half of the largest possible entropy of choices, of those that a mask allows",
    )
    target_entropy_per_dim: Annotated[float, Field(allow_inf_nan=False)] = _replay(
        -1.0, "with target_entropy=auto: nats for each continuous dimension"
    )
    policy_delay: PositiveInt = _replay(1, "updates of the critics for each update of the policy")
    initial_ent_coef: PositiveFloat | Auto = _replay(
        "auto",
        "ent_coef=auto: entropy coefficient at the start; auto is 1, or 0.01 with value_bins, whose range returns of "
        "so much entropy would leave",
    )
    critic: Literal["mlp", "simba", "simba_v2", "crossq"] = _replay(
        "mlp",
        "SAC: a named set of values for the settings from critic_mlp_layers to use_target_critics and for those of "
        "learning that its paper changes, each of which may also be given alone; docs/algorithms.md has the table",
    )
    num_critics: Annotated[int, Field(ge=2)] = _replay(
        2,
        "SAC: critics. Of more than two, each target is the smaller value of two that are drawn, and the policy is "
        "trained with the mean of all (REDQ, whose paper has 10 critics and 20 updates for each environment step)",
    )
    critic_layer_norm: bool = _replay(False, "layer normalization in the critics")
    burn_in: NonNegativeInt = _replay(16, "with use_rnn: rows before each sequence that only warm up recurrent states")
    exploration_noise: Literal["white", "pink", "ou"] = _replay(
        "white",
        "noise of continuous actions in one environment from step to step: independent (white), or correlated over a "
        "few steps (ou, Ornstein-Uhlenbeck) or over all times up to a thousand steps (pink)",
    )
    exploration_stddev: NonNegativeFloat = _replay(0.1, "TD3: deviation of noise in rollouts, of actions in [-1, 1]")
    exploration_stddev_max: NonNegativeFloat | None = _replay(
        None, "TD3: environments have deviations evenly spaced from exploration_stddev to this; none is one for all"
    )
    target_policy_noise: NonNegativeFloat = _replay(
        0.2, "TD3: deviation of the noise on the target policy's actions in [-1, 1]"
    )
    target_noise_clip: NonNegativeFloat = _replay(0.5, "TD3: largest noise on an action of the target policy")
    her_goals: NonNegativeInt = _replay(
        0,
        "environments with goals (GoalEnv of Gymnasium-Robotics): other goals that are stored with each step, which "
        "the same episode achieved later; a transition is drawn with its own goal or with one of these, all equally "
        "likely (hindsight experience replay; its paper has 4)",
    )
    prioritized_replay: bool = _replay(
        False, "DQN: draw transitions whose errors were large more often, and weight them less (proportional variant)"
    )
    prioritized_replay_alpha: Fraction = _replay(
        0.6, "power of the errors by which transitions are drawn; 0 draws all of them equally often"
    )
    prioritized_replay_beta: Fraction = _replay(
        0.4, "power of the weights at the start, which rises to 1 at train_for_env_steps; 1 corrects the draw fully"
    )
    critic_mlp_layers: list[PositiveInt] | None = _replay(
        None,
        "widths of the critics' hidden layers, or of their residual blocks; none is encoder_mlp_layers. Behind an "
        "encoder (images, masks, use_rnn) there is one layer, of the last width",
    )
    residual_blocks: bool = _replay(
        False,
        "SAC: hidden layers of actor and critics are residual blocks that begin with layer normalization, all of one "
        "width (SimBa)",
    )
    hyperspherical_weights: bool = _replay(
        False, "SAC: weights and features of actor and critics have length 1, with learned scales (SimbaV2)"
    )
    batch_renorm: bool = _replay(
        False, "SAC: batch renormalization of the inputs and hidden layers of actor and critics (CrossQ)"
    )
    value_bins: Annotated[int, Field(ge=2)] | None = _replay(
        None, "SAC: the critics predict a distribution over returns as this many bins (C51); none means its mean alone"
    )
    value_limit: PositiveFloat = _replay(5.0, "value_bins: bins are at equal distances from minus to plus this return")
    normalize_rewards: bool = _replay(
        False,
        "divide rewards by the running deviation of the discounted return; with value_bins by more if a return would "
        "leave their range",
    )
    weight_decay: NonNegativeFloat = _replay(
        0.0, "share of the parameters, times the learning rate, that each optimizer step removes (AdamW)"
    )
    use_target_critics: bool = _replay(
        True,
        "SAC: targets are values of target critics; without them they are values of the critics, which take current "
        "and next observations as one batch",
    )
    dueling: bool = _replay(False, "DQN: the network predicts the value of a state and how much better each choice is")
    exploration_initial_eps: Fraction = _replay(1.0, "DQN: probability of a choice at random at the start")
    exploration_final_eps: Fraction = _replay(0.05, "DQN: the same after exploration_fraction of the run")
    exploration_fraction: Fraction = _replay(
        0.1, "DQN: share of train_for_env_steps over which the probability of a choice at random falls"
    )

    hogwild_mode: Literal["auto", "shared", "synced", "gradients"] = _hogwild(
        "auto",
        "workers act with the shared parameters directly (shared), with a copy pulled before a rollout or update "
        "(synced), or with published parameters, sending gradients to a process that combines them (gradients); auto "
        "is synced for PPO and A2C, and shared for SAC",
    )
    hogwild_optimizer: Literal["adam", "rmsprop"] = _hogwild(
        "adam", "optimizer of the shared parameters; its state is also shared"
    )
    hogwild_max_staleness: NonNegativeInt | None = _hogwild(
        None,
        "largest number of updates that others may make between a worker's pull of the parameters and its push; a "
        "worker that is over it pulls and computes again. none means no bound, and nobody waits",
    )
    num_gradients_to_combine: AutoPositiveInt = _hogwild(
        "auto",
        "gradients mode: number of gradients combined into one step; auto is the number of workers, or less where most "
        "of them are in one pool on another machine",
    )
    combine_gradients: Literal["mean", "sum"] = _hogwild(
        "mean", "gradients mode: how gradients are combined before clipping"
    )

    encoder: str = _model("default", "name of a registered encoder")
    core: str = _model("default", "with use_rnn: name of a registered recurrent core")
    model: str = _model("default", "name of a registered model of actor and critic")
    critic_only_keys: list[str] = _model(
        [],
        "keys of Dict observations that only the critic sees (outer/inner for nested ones): the actor, exported files "
        "and load_policy do without them",
    )
    image_channels: ImageChannels = _model(
        "auto",
        "position of the channels in observed arrays of three or four axes: before height and width (first) or after "
        "them (last). auto takes two neighbouring axes of equal size as height and width, otherwise the smaller of the "
        "first and the last axis as channels",
    )
    encoder_conv_architecture: Literal["auto", "nature", "impala"] = _model(
        "auto", "convolutions over images; auto is nature for images of at least 36 x 36 pixels, otherwise impala"
    )
    normalize_images: bool = _model(
        False, "subtract from each image its own mean, and divide it by its own deviation, before the convolutions"
    )
    encoder_conv_mlp_layers: list[PositiveInt] = _model([512], "widths of the hidden layers after the convolutions")
    use_rnn: bool = _model(False, "make the policy recurrent: a recurrent core follows the encoder")
    rnn_type: Literal["gru", "lstm"] = _model("gru", "kind of recurrent core")
    rnn_size: PositiveInt = _model(128, "size of the recurrent state, in each layer")
    rnn_num_layers: PositiveInt = _model(1, "layers of the recurrent core")
    recurrence: AutoPositiveInt = _model("auto", "steps of backpropagation; auto is rollout, or 16 with a replay")
    encoder_mlp_layers: list[PositiveInt] = _model([64, 64], "widths of the hidden layers")
    nonlinearity: Literal["tanh", "relu", "elu"] = _model("tanh", "activation function")
    actor_critic_share_weights: bool = _model(False, "one network with two heads for actor and critic")
    policy_initialization: Literal["orthogonal", "torch_default"] = _model("orthogonal", "initial weights")
    adaptive_stddev: bool = _model(False, "continuous actions: the standard deviation depends on the observation")
    initial_stddev: PositiveFloat = _model(
        0.6, "continuous actions: standard deviation at the start, in the unit of action_unit"
    )
    use_sde: bool = _model(False, "continuous actions: the exploration noise is a function of the observation (gSDE)")
    sde_sample_freq: Annotated[int, Field(ge=-1)] = _model(-1, "steps between new noise of gSDE; -1 is for an episode")
    action_unit: Literal["bounds", "raw"] = _model(
        "bounds",
        "continuous actions: the policy's -1 and 1 are the environment's bounds in each dimension where both bounds "
        "are finite (bounds), or the environment gets the policy's numbers unchanged (raw)",
    )
    squash_actions: bool = _model(False, "continuous actions: squash with tanh to the bounds, which must be finite")

    num_policies: PositiveInt = _policies(1, "policies that are trained at the same time, each by its own learner")
    policy_mapping: str = _policies(
        "auto",
        "the policy that plays an agent for an episode: always the first (shared); policy i for agent i (independent); "
        "one drawn for each agent and episode, of all (random) or of those with the agent's spaces (by_space, auto); "
        "or MODULE:function of the agent's name, the environment's number and the episode's",
    )
    policies: dict[NonNegativeInt, dict[str, Any]] = _policies(
        {},
        "learning and model settings of single policies that differ from the others', by the policy's number; as flags "
        "--policy.1.learning_rate=0.001",
    )
    with_pbt: bool = _policies(
        False,
        "population-based training: bad policies continue with weights and hyperparameters of good ones, which are "
        "changed at random; needs several policies, or runs with pbt_shared_dir",
    )
    pbt_period_env_steps: PositiveInt = _policies(5_000_000, "environment steps of a policy between two of its turns")
    pbt_start_mutation: NonNegativeInt = _policies(20_000_000, "environment steps of a policy before its first turn")
    pbt_replace_fraction: Fraction = _policies(
        0.3, "share of the policies that are good, and of those that are bad, rounded up"
    )
    pbt_mutation_rate: Fraction = _policies(0.15, "probability with which a hyperparameter is changed in a turn")
    pbt_perturb_min: AtLeastOne = _policies(1.1, "smallest factor by which a hyperparameter is multiplied or divided")
    pbt_perturb_max: AtLeastOne = _policies(1.5, "largest factor by which a hyperparameter is multiplied or divided")
    pbt_replace_reward_gap: NonNegativeFloat = _policies(
        0.1, "a bad policy is replaced if the good one is better by more than this share of its objective"
    )
    pbt_replace_reward_gap_absolute: NonNegativeFloat = _policies(
        1e-6, "a bad policy is replaced if the good one is better by more than this"
    )
    pbt_optimize_gamma: bool = _policies(False, "change gamma, too")
    pbt_target_objective: str = _policies(
        "true_objective",
        'name in info["episode_extra_stats"] of the number that is to become large, as a mean over 100 episodes; '
        "true_objective is the return if episodes do not have it",
    )
    pbt_shared_dir: PathText | None = _policies(
        None, "folder through which runs with one policy each, perhaps on several machines, are one population"
    )

    self_play: bool = _self_play(
        False, "play a share of the games against a pool of frozen earlier versions of the policy; PPO and A2C"
    )
    self_play_pool_share: Fraction = _self_play(
        0.5,
        "share of the games in which the policy plays one agent, drawn at random, and one member of the pool, each "
        "equally likely, plays all others; in other games, and while the pool is empty, the policy plays all agents",
    )
    self_play_pool_size: PositiveInt = _self_play(10, "members of the pool; when it is full the oldest one leaves")
    self_play_add_every_env_steps: PositiveInt = _self_play(
        100_000, "environment steps after which the policy of that moment enters the pool"
    )

    env_start_timeout: PositiveFloat = _failures(
        300.0,
        "seconds in which an environment is made, reset and stepped for the first time: in the check before the run, "
        "and in each rollout worker",
    )
    env_step_timeout: PositiveFloat = _failures(
        180.0,
        "kill and restart a rollout worker that made no environment step for this many seconds, except while it "
        "waited for other processes",
    )
    max_restarts: NonNegativeInt = _failures(10, "restarts of workers within restart_window_s; one more ends the run")
    max_env_failures: NonNegativeInt = _failures(
        10,
        "failures of environments of one worker within restart_window_s; one more ends the run. Before the run's first "
        "finished episode the first failure ends it, and any failure of an environment of tensors",
    )
    restart_window_s: PositiveFloat = _failures(600.0, "seconds for which max_restarts and max_env_failures count")
    max_learner_restarts: NonNegativeInt = _failures(0, "how often the run resumes by itself after its learner died")
    nan_policy: Literal["drop", "fail"] = _failures(
        "drop",
        "on a step whose reward or observation is NaN or infinite: drop it and reset the environment, or fail the run; "
        "an environment of tensors always fails it",
    )
    max_skipped_steps: PositiveInt = _failures(
        10, "end the run after this many optimizer steps in a row were skipped for NaN or infinity in loss or gradient"
    )

    with_tensorboard: bool = _output(True, "write TensorBoard event files")
    episodes_csv: bool = _output(
        False, "write every training episode to episodes/*.monitor.csv, in the format of Stable-Baselines3's Monitor"
    )
    profile: bool = _output(False, "show where each role's time goes: a table at the end and profile/* in the records")
    quiet: bool = _output(False, "print no progress")
    progress: Progress = _output(
        "auto",
        "how progress is shown: dashboard (the key d changes to one line and back), live (one line, drawn again), "
        "lines (one after the other); auto is the dashboard on a terminal, and lines elsewhere and in serial mode",
    )
    track: list[Literal["wandb", "mlflow", "trackio", "comet"]] = _output(
        [],
        "pass settings, records and the best checkpoint on to these experiment trackers, too: wandb, mlflow, trackio, "
        "comet; each needs its package",
    )
    track_project: str = _output("asyncrl", "project (of mlflow: experiment) in which trackers file the run")
    callbacks: CallbackNames = _output(
        [], "observers of the run: names that packages have registered (entry points asyncrl.callbacks), or MODULE:Name"
    )

    @property
    def env_id(self) -> str:
        """The environment's id, or `module:name` of a callable (an `EnvMaker` if it cannot be imported by that)."""
        assert isinstance(self.env, str)
        return self.env

    @property
    def preprocesses_atari(self) -> bool:
        """Whether the environment is an Atari game with the usual preprocessing."""
        return self.env_id.startswith("ALE/") and self.atari_preprocessing

    @property
    def frames_per_step(self) -> int:
        """Frames of a preprocessed game in one environment step; 1 for other environments."""
        return int(self.env_kwargs.get("frameskip", ATARI_FRAMESKIP)) if self.preprocesses_atari else 1

    @property
    def algorithm(self) -> Algorithm:
        """The record of `algo`."""
        return find_algorithm(self.algo, self.import_modules)

    @property
    def is_off_policy(self) -> bool:
        """Whether the algorithm learns from a replay."""
        return self.algorithm.collects == "replay"

    @property
    def rnn_state_size_of_core(self) -> int:
        """Size of the recurrent state of one environment in one recurrent core."""
        return self.rnn_size * self.rnn_num_layers * (2 if self.rnn_type == "lstm" else 1)

    @property
    def has_blocks(self) -> bool:
        """Whether SAC's networks have other hidden layers than those of a perceptron."""
        return self.residual_blocks or self.hyperspherical_weights or self.batch_renorm

    @property
    def squashes(self) -> bool:
        """Whether continuous actions are squashed to their bounds."""
        has_sac_actor = self.is_off_policy and self.algorithm.make_model is None
        return self.squash_actions or self.algorithm.squashes_actions or has_sac_actor

    @property
    def action_mapping(self) -> ActionMapping:
        """How continuous actions are converted for the environment."""
        if self.squashes:
            return "squashed"
        return "rescaled" if self.action_unit == "bounds" else "raw"

    def of_policy(self, policy_idx: int) -> TrainConfig:
        """The settings of one policy of several.

        Raises:
            UsageError: one of its own settings is unknown or has a value that is not possible.
        """
        own = self.policies.get(policy_idx)
        if not own:
            return self
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**values, **own})

    @property
    def maps_policies(self) -> str:
        """`policy_mapping`, with auto resolved."""
        return "by_space" if self.policy_mapping == "auto" else self.policy_mapping

    @property
    def best_metric(self) -> Literal["none", "eval", "train"]:
        """`save_best_metric`, with auto resolved. In self-play, returns say how strong the opponents are, too."""
        if self.save_best_metric != "auto":
            return self.save_best_metric
        if self.self_play:
            return "none"
        return "train" if self.eval_every_env_steps is None else "eval"
