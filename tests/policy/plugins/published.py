"""The published policies as policies of a user's package."""

from rankfold.policy.published import las, optimus

own_las, own_optimus = las, optimus
