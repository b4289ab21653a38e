"""The axes whose ranks exchange within layers: all that the files of this folder declare."""

from importlib import import_module
from pkgutil import iter_modules

from trainer.plan import axes
from trainer.plan.axes.axis import Axis
from trainer.plan.axes.mesh import PRICED_AXES, ordered

_FOUND = {
    value.name: value
    for module in iter_modules(axes.__path__, f"{axes.__name__}.")
    if module.name != __name__
    for value in vars(import_module(module.name)).values()
    if isinstance(value, Axis)
}
AXES = {name: _FOUND[name] for name in ordered(PRICED_AXES) if name in _FOUND}
"""By name, innermost first."""
