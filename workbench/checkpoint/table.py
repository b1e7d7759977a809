"""What an entry of the table of families is made of: keys of a config, places of tensors, and how both are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.checkpoint.config import Layer
from workbench.errors import UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workbench.checkpoint.config import Experts, Rope

REQUIRED = object()
CHECK = "Check the config against the published one; what it asks for is never left out silently."


@dataclass(frozen=True, slots=True)
class Key:
    """A value that the config states: the first of `names` that is there and not null, else `default`.

    `default` may be a function of `Facts`; `convert` is applied to what the config states.
    """

    names: str
    default: Any = REQUIRED
    convert: Callable[[Any], Any] | None = None


class Facts:
    """A config while it is read: every key that is looked at is remembered, so that the others can be refused.

    Parameters
    ----------
    config : mapping
        Keys as the family names them.
    label : str
        What errors call it.
    has : callable
        Whether the file holds a tensor of this name.
    read : callable
        Gives a small tensor of the file.
    shape : callable
        Gives the shape of a tensor of the file.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        label: str,
        has: Callable[[str], bool],
        read: Callable[[str], Any],
        shape: Callable[[str], tuple[int, ...]],
    ) -> None:
        self._config = config
        self._seen: set[str] = set()
        self.label = label
        self.has_tensor = has
        self.read_tensor = read
        self.shape_of = shape
        self.size: dict[str, int] = {}
        self.stated_null = frozenset(key for key, value in config.items() if value is None)

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["size"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, key: str, default: Any = None) -> Any:
        """Look a key up; null counts as not stated."""
        self._seen.add(key)
        value = self._config.get(key)
        return default if value is None else value

    def value(self, spec: Any) -> Any:
        """Find out what an entry of the table means here: a `Key`, a function of the facts, or a constant."""
        if isinstance(spec, Key):
            stated = [self.get(name) for name in spec.names.split()]
            found = next((value for value in stated if value is not None), None)
            if found is not None:
                return spec.convert(found) if spec.convert else found
            if spec.default is REQUIRED:
                raise UnsupportedError(f"{self.label} must state {spec.names.split()[0]!r}", "no such key", CHECK)
            return self.value(spec.default)
        return spec(self) if callable(spec) else spec

    def number(self, spec: Any, what: str) -> int:
        """Find a size: a whole number above 0."""
        value = self.value(spec)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise UnsupportedError(f"{what} of {self.label} must be a whole number above 0", shown(value), CHECK)
        return value

    def leftovers(self, harmless: frozenset[str]) -> list[str]:
        """Keys that nobody looked at, are not null and are not known to be harmless."""
        left = (key for key in self._config if key not in self._seen and key not in harmless)
        return sorted(key for key in left if self._config[key] is not None)


@dataclass(frozen=True, slots=True)
class Part:
    """A module whose tensors are a part of fused ones.

    Parameters
    ----------
    module : str
        Name in the file without `.weight` or `.bias`.
    part : str
        "q", "k" or "v"; "gate" or "up".
    grouped : bool
        Whether queries, keys and values of one group of heads lie together, group after group.
    """

    module: str
    part: str
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """Tensors that hold one module of every expert along their first axis, with no `.weight` in their names."""

    name: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A vector that stands for a matrix of one row."""

    name: str


Place = str | Part | Stack | Row
Rule = Any  # a constant, a Key, or a function of Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One entry of the table.

    Parameters
    ----------
    name : str
        `model_type` of config.json, or `general.architecture` of GGUF.
    sizes, traits : mapping
        Fields of `DecoderConfig` and how to find them.
    rope, windows, experts, scales : rules
        One value for all layers, or a tuple with one a layer.
    biases : mapping of str to rule
        Modules, separated by spaces, and whether they have a bias.
    places : mapping of str to Place or tuple of Place
        Canonical module to module of the file; of several places the first that exists counts.
    must : mapping of str to tuple
        Keys that are understood only with one of these values.
    harmless : frozenset of str
        Keys that change no number of a forward pass.
    base : str
        Prefix that a checkpoint of the bare decoder leaves out.
    transposed : frozenset of str
        Modules stored as [in, out].
    plus : mapping of str to float
        What is added to the weights of a module (a norm that multiplies by one plus its weight).
    ignored : str
        Pattern of tensors that hold no weights.
    """

    name: str
    sizes: Mapping[str, Rule]
    traits: Mapping[str, Rule]
    rope: Rule = None
    windows: Rule = None
    experts: Rule = None
    scales: Rule = lambda facts: facts.head_dim**-0.5
    biases: Mapping[str, Rule] = field(default_factory=dict)
    places: Mapping[str, Place | tuple[Place, ...]]
    must: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    base: str = ""
    transposed: frozenset[str] = frozenset()
    plus: Mapping[str, float] = field(default_factory=dict)
    ignored: str = r"(?!)"


def per_layer(facts: Facts, rule: Rule, what: str) -> tuple[Any, ...]:
    """Spread a rule over the layers.

    Raises
    ------
    UnsupportedError
        If it gives another number of values than there are layers.
    """
    value = facts.value(rule)
    values = value if isinstance(value, tuple) else (value,) * facts.n_layers
    if len(values) != facts.n_layers:
        raise UnsupportedError(
            f"{what} of {facts.label} must name one a layer, {facts.n_layers} in all", f"{len(values)}", CHECK
        )
    return values


def layers_from(facts: Facts, family: Family) -> tuple[Layer, ...]:
    """Gather what may differ from layer to layer."""
    ropes: Sequence[Rope | None] = per_layer(facts, family.rope, "rope")
    windows: Sequence[int | None] = per_layer(facts, family.windows, "the sliding windows")
    experts: Sequence[Experts | None] = per_layer(facts, family.experts, "the experts")
    scales: Sequence[float] = per_layer(facts, family.scales, "the attention scale")
    rows = zip(ropes, windows, experts, scales, strict=True)
    return tuple(Layer(rope=r, window=w, experts=e, attn_scale=float(s)) for r, w, e, s in rows)
