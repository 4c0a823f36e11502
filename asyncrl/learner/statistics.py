"""The running statistics of an on-policy learner: which published version had which, and the units of returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.models.actor_critic import ActorCritic


class LearnerStatistics:
    """Owns the running moments of observations and returns, and writes them to the model's statistics.

    Attributes:
        obs_moments, return_moments: of all samples so far.
        obs_statistics: [2F] float32, means and deviations of observations that the next publication has.
        published: `obs_statistics` of each version that a dataset may have samples of.
    """

    def __init__(self, model: ActorCritic, storage: ParameterStore, config: TrainConfig, device: torch.device) -> None:
        """Starts with the statistics of the model; `storage` allocates the memory of the moments."""
        self._model, self._config = model, config
        self.obs_moments = storage.moments("obs", model.observation_size, device)
        self.return_moments = storage.moments("return", 1, device)
        self.published: dict[int, Tensor] = {}
        self.read_model()

    def read_model(self) -> None:
        """Adopts the model's statistics of observations."""
        self.obs_statistics = self._model.statistics[: 2 * self._model.observation_size].clone()

    def publish(self, policy_version: int) -> None:
        """Keeps the statistics of a version until its samples are too old to be trained on."""
        oldest = policy_version - self._config.max_policy_lag
        self.published = {version: kept for version, kept in self.published.items() if version >= oldest}
        self.published[policy_version] = self.obs_statistics

    def normalize(self, obs: Tensor, present: Sequence[int], versions: Tensor) -> Tensor:
        """Normalizes the numbers of samples, in place, with the statistics that the policy of each sample used.

        So an unchanged policy gives each action the probability that it had, even if the statistics have changed
        since. Returns do not need this: slots hold values in units of rewards, and the critic's head always fits the
        newest statistics of returns.

        Args:
            obs: [N, F] float32, raw.
            present: the policy versions that acted on them.
            versions: [N] int64, the one of each.

        Raises:
            LookupError: a version was never published.
        """
        unknown = [version for version in present if version not in self.published]
        if unknown:
            raise LookupError(
                f"the dataset has samples of the policy versions {unknown}, but those published within max_policy_lag "
                f"are {sorted(self.published)}: publish before collecting, and drop older trajectories"
            )
        groups: dict[int, list[int]] = {}  # versions by the statistics that they share
        for version in present:
            groups.setdefault(id(self.published[version]), []).append(version)
        if len(groups) == 1:
            return self._model.normalize_obs(obs, out=obs, statistics=self.published[present[0]])
        for group in groups.values():
            rows = torch.isin(versions, torch.tensor(group, device=obs.device)).nonzero().squeeze(-1)
            own = obs.index_select(0, rows)
            statistics = self.published[group[0]]
            obs.index_copy_(0, rows, self._model.normalize_obs(own, out=own, statistics=statistics))
        return obs

    def update(self, raw_obs: Tensor, raw_returns: Tensor) -> None:
        """Adds the valid rows of a dataset to the moments: observations `[N, F]`, and returns `[N]`."""
        if self._config.normalize_input:
            self.obs_moments.update(raw_obs)
        if self._config.normalize_returns:
            self.return_moments.update(raw_returns.unsqueeze(-1))

    def write_model(self) -> None:
        """Writes the moments to the model; PopArt rescales the critic's head, so that no prediction changes."""
        if self._config.normalize_input:
            self._model.set_obs_statistics(self.obs_moments.mean, self.obs_moments.std)
            self.read_model()
        if self._config.normalize_returns:
            self._model.renormalize_returns(self.return_moments.mean, self.return_moments.std)

    def adopt_model(self) -> None:
        """Continues from the statistics of the model, which are another learner's."""
        self.read_model()
        return_statistics = self._model.statistics[len(self.obs_statistics) :]
        self.obs_moments.adopt(*self.obs_statistics.chunk(2))
        self.return_moments.adopt(*return_statistics.chunk(2))

    def tensors(self) -> dict[str, Tensor]:
        """The moments in use, by their names in a checkpoint."""
        return {
            "obs_mean": self.obs_moments.mean,
            "obs_variance": self.obs_moments.variance,
            "return_mean": self.return_moments.mean,
            "return_variance": self.return_moments.variance,
        }
