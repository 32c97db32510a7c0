"""Promise: programs that know nothing of rankfold give the same bits however their job ran."""
