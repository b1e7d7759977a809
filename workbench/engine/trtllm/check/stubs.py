"""What stands in for the parts of TensorRT-LLM that a plain build does not need.

Its Python sources run unedited with plain TensorRT. The compiled module, the plugin library and some third-party
packages are only imported then, or asked for one constant: the tables below are all of it.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

COMPILED = "tensorrt_llm.bindings"
ABSENT_ALLOWED = (  # third-party packages that plain builds only import
    "cuda.cudart",
    "datasets",
    "h5py",
    "janus",
    "mpi4py",
    "nvtx",
    "onnx_graphsurgeon",
    "pulp",
    "pynvml",
    "sentencepiece",
    "zmq",
)
RENAMED = {"AutoModelForVision2Seq": "AutoModelForImageTextToText"}  # transformers, old name to new
VALUES: dict[str, dict[str, Any]] = {  # constants that are really read
    "pynvml": {
        "__version__": "12.0.0",
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "999",
        "nvmlDeviceGetMemoryInfo": lambda *_, **__: None,
        "nvmlMemory_v2": 2,
    },
    f"{COMPILED}.BuildInfo": {"ENABLE_MULTI_DEVICE": False},
    f"{COMPILED}.internal.runtime": {"lamport_initialize_all": lambda *_, **__: None},
}


class KVCacheType(enum.Enum):
    """The one class of the compiled module that a build uses."""

    CONTINUOUS, PAGED, DISABLED = range(3)

    @classmethod
    def _missing_(cls, value: object) -> KVCacheType | None:
        return cls.__members__.get(str(value).upper())


class _BlankType(type):
    """Type of a blank: its attributes are blanks, and it may stand in annotations."""

    def __getattr__(cls, name: str) -> _BlankType:
        return _attribute(name)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and not options and callable(arguments[0]):
            return arguments[0]  # as a decorator
        return super().__call__(*arguments, **options)

    def __or__(cls, _other: object) -> _BlankType:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Iterator[object]:
        return iter(())


def _blank(name: str) -> _BlankType:
    """Make a class that can be subclassed, called, subscripted and used as a decorator, and does nothing."""

    def call(self: object, *arguments: object, **_: object) -> object:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    methods: dict[str, object] = {
        "__init__": lambda *_, **__: None,
        "__call__": call,
        "__getattr__": lambda _, attribute: _attribute(attribute),
        "__class_getitem__": classmethod(lambda cls, _: cls),
    }
    return _BlankType(name, (), methods)


def _attribute(name: str) -> _BlankType:
    if name.startswith("__"):
        raise AttributeError(name)
    return _blank(name)


class BlankModule(types.ModuleType):
    """A module whose attributes are blanks, except for what `VALUES` holds."""

    def __init__(self, name: str, **values: object) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = f"<stand-in for {name}>"
        self.__dict__.update(VALUES.get(name, {}), **values)

    def __getattr__(self, name: str) -> object:
        return _attribute(name)


class _AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands last, so that it is asked only for packages that are not installed."""

    def __init__(self, used: list[str]) -> None:
        self.used = used

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if any(fullname == root or fullname.startswith(f"{root}.") for root in ABSENT_ALLOWED):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        self.used.append(spec.name)
        return BlankModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def install_stubs() -> list[str]:
    """Put the stand-ins in place; must run before `tensorrt_llm` is imported.

    Returns
    -------
    list of str
        What was replaced; grows while modules are imported.
    """
    used = [COMPILED]
    parts = ("", ".BuildInfo", ".executor", ".internal", ".internal.runtime")
    for name in (COMPILED + part for part in parts):
        module = BlankModule(name, KVCacheType=KVCacheType) if name == COMPILED else BlankModule(name)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
    if importlib.util.find_spec("strenum") is None:
        sys.modules["strenum"] = BlankModule("strenum", StrEnum=enum.StrEnum, LowercaseStrEnum=enum.StrEnum)
        used.append("strenum")
    used += _mend_transformers() + _mend_versions() + _mend_dataclasses()
    sys.meta_path.append(_AbsentFinder(used))
    return used


def _mend_transformers() -> list[str]:
    importlib.import_module("transformers.models.gpt2.modeling_gpt2")  # this replaces the module object, so ask late
    transformers = sys.modules["transformers"]
    missing = {old: new for old, new in RENAMED.items() if not hasattr(transformers, old)}
    for old, new in missing.items():
        setattr(transformers, old, getattr(transformers, new, None) or _blank(old))
    return [f"transformers.{old}" for old in missing]


def _mend_versions() -> list[str]:
    """Let a package that is not installed have the version that `VALUES` gives it."""
    real = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return real(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name not in VALUES:
                raise
            return str(VALUES[distribution_name]["__version__"])

    importlib.metadata.version = version
    if importlib.util.find_spec("pynvml") is None:
        return []
    pynvml: Any = importlib.import_module("pynvml")
    if not hasattr(pynvml, "__version__"):  # newer ones have none, and it is compared
        pynvml.__version__ = VALUES["pynvml"]["__version__"]
        return ["pynvml.__version__"]
    return []


def _mend_dataclasses() -> list[str]:
    """Admit instances of dataclasses as defaults, as Python did until 3.10."""
    real: Callable[..., Any] = dataclasses.dataclass

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        def make(target: Any) -> Any:
            made = real(target, **options)
            if made.__hash__ is None:
                made.__hash__ = object.__hash__
            return made

        return make if cls is None else make(cls)

    dataclasses.dataclass = dataclass
    return ["dataclasses.dataclass"]
