"""NumPy's global generator, which belongs to the logical worker that runs.

To copy its state takes 0.1 ms, ten times as long as the rest of a switch. So each worker has a bit
generator of its own, and a switch passes another one to NumPy. NumPy also keeps the
second number of `randn`: it is saved and restored with the bit generator's own state left out.
"""

from __future__ import annotations

from typing import Any

import numpy

_random: Any = numpy.random


class MT19937(numpy.random.MT19937):
    """NumPy's, whose name is part of its state. While it is `brief`, its state is empty."""

    brief = False

    @property
    def state(self) -> Any:
        if self.brief:
            return {"bit_generator": "MT19937", "state": {}}
        return _random.MT19937.state.__get__(self)

    @state.setter
    def state(self, state: Any) -> None:
        if not self.brief:
            _random.MT19937.state.__set__(self, state)

    def __reduce__(self) -> Any:
        """A pickle, such as that of a copy of the global generator, has NumPy's own class."""
        stock = numpy.random.MT19937()
        stock.state = self.state
        return stock.__reduce__()


class Numpy:
    """NumPy's global generator as it is now. A script may have set another kind of bit generator:
    its state is copied."""

    def __init__(self) -> None:
        self._bits = _random.get_bit_generator()
        self._own = isinstance(self._bits, MT19937)
        self._set_brief(True)
        self._state = numpy.random.get_state(legacy=False)
        self._set_brief(False)

    def _set_brief(self, brief: bool) -> None:
        if self._own:
            self._bits.brief = brief

    def restore(self) -> None:
        _random.set_bit_generator(self._bits)
        self._set_brief(True)
        numpy.random.set_state(self._state)
        self._set_brief(False)


def begin() -> None:
    """From now on the calling logical worker has its own bit generator, with the same state."""
    state = numpy.random.get_state(legacy=False)
    _random.set_bit_generator(MT19937(0))
    numpy.random.set_state(state)
