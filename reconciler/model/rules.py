"""The rules of a fleet's Policy documents, as the policy takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rankfold.policy.vocabulary import TIERS, Quota, Rules
from rankfold.reconciler.model.desired import Desired, TierRule

_NONE = TierRule(0.0)


def rules_of(
    desired: Desired,
    ranks_on_a_device: int,
    used: Mapping[str, float] = MappingProxyType({}),
    minute: int = -1,
) -> Rules:
    """used: device-seconds that the jobs of each quota have had, as in `Quota.used`. minute: of a
    day of UTC; below 0: not known."""
    tiers = [desired.tiers.get(tier, _NONE) for tier in TIERS]
    return Rules(
        ranks_on_a_device,
        growth_delay=desired.growth_delay_s,
        preemption_delay=desired.preemption_delay_s,
        fractions=tuple(each.fraction for each in tiers),
        periods=tuple(each.period_s for each in tiers),
        quotas=tuple(
            Quota(name, each.devices, each.weight, each.borrow, each.lend, used.get(name, 0.0))
            for name, each in sorted(desired.quotas.items())
        ),
        max_wait=desired.max_wait_s,
        disturbances=tuple(desired.disturbances.get(tier) for tier in TIERS),
        exempt=desired.defragmentation.exempt,
        compacts=desired.defragmentation.is_open(minute),
    )
