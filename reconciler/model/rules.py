"""The rules of a fleet's Policy documents, as the policy takes them."""

from __future__ import annotations

from rankfold.policy.vocabulary import TIERS, Rules
from rankfold.reconciler.model.desired import Desired, TierRule

_NONE = TierRule(0.0)


def rules_of(desired: Desired, ranks_on_a_device: int) -> Rules:
    tiers = [desired.tiers.get(tier, _NONE) for tier in TIERS]
    return Rules(
        ranks_on_a_device,
        growth_delay=desired.growth_delay_s,
        preemption_delay=desired.preemption_delay_s,
        fractions=tuple(each.fraction for each in tiers),
        periods=tuple(each.period_s for each in tiers),
    )
