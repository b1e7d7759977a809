# ruff: noqa: C901, N802 - one module of another library in one function, and the driver's own names
"""A stand-in for TensorRT 10.6 and the CUDA driver: its names and order of calls, with ONNX Runtime in the engine.

Whatever 10.6 does not have is missing here too. The "card" is host memory, so that addresses, sizes and shapes are used
for real: a wrong one gives wrong rows.
"""

import ctypes
import json
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx

from workbench.engine.ort_session import OrtSession
from workbench.engine.plan_files import map_weights
from workbench.engine.tensorrt.api import Api
from workbench.graph.kinds import narrow_dtype

NAMES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int32": "INT32", "int64": "INT64"}


class Severity(IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


def enum(name, *members):
    return IntEnum(name, members, start=0)


def twin_api(calls, *, version="10.6.0", refuse=None, weights="file"):
    """An `Api` whose module records every call in `calls`.

    `weights` says how they reach it: read by the parser from the `file`, or `mapped` into the network as constants, as
    in 10.6, or `loaded` into the parser, as from 10.10 on.
    """

    def note(name, *arguments):
        calls.append((name, *arguments))

    class ILogger:
        Severity = globals()["Severity"]

    class IProgressMonitor:
        pass

    class Profile:
        def set_shape(self, name, smallest, usual, largest):
            note("set_shape", name, smallest, usual, largest)
            assert all(a <= b <= c for a, b, c in zip(smallest, usual, largest, strict=True)), name
            self.__dict__.setdefault("shapes", {})[name] = (smallest, usual, largest)

    class Cache:
        def __init__(self, data):
            self.data = data

        def serialize(self):
            return self.data + b"tactic;"

    class Config:
        builder_optimization_level = profiling_verbosity = progress_monitor = None

        def create_timing_cache(self, data):
            note("create_timing_cache", data)
            return Cache(data)

        def set_timing_cache(self, cache, ignore_mismatch):
            note("set_timing_cache", ignore_mismatch)
            self.cache = cache
            return True

        def get_timing_cache(self):
            return self.cache

        def set_flag(self, flag):
            note("set_flag", flag.name)

        def clear_flag(self, flag):
            note("clear_flag", flag.name)

        def add_optimization_profile(self, profile):
            note("add_optimization_profile")
            self.__dict__.setdefault("profiles", []).append(profile.shapes)
            return len(self.profiles) - 1

    class Network:
        def __init__(self, flags):
            note("create_network", flags)

        @property
        def num_inputs(self):
            return len(self.model.graph.input)

        def get_input(self, index):
            value = self.model.graph.input[index]
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            return SimpleNamespace(name=value.name, dtype=dtype)

        @property
        def num_layers(self):
            return len(self.model.graph.node)

        def get_layer(self, index):
            return Layer(self.model.graph.node[index])

        def add_constant(self, shape, weights):
            note("add_constant", weights.address)
            assert weights.count == np.prod(shape)
            array = view(weights.address, shape, weights.dtype)
            name = f"constant {len(self.model.graph.initializer)}"
            self.model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(array), name))
            return SimpleNamespace(name="", get_output=lambda _i: SimpleNamespace(name=name))

        def remove_tensor(self, tensor):
            assert not any(tensor.name in node.input for node in self.model.graph.node), tensor.name
            if refuse != "remove":
                self.model.graph.input.remove(next(v for v in self.model.graph.input if v.name == tensor.name))

    class Layer:
        def __init__(self, node):
            self.node, self.num_inputs = node, len(node.input)

        def get_input(self, index):
            name = self.node.input[index]
            return SimpleNamespace(name=name) if name else None

        def set_input(self, index, tensor):
            self.node.input[index] = tensor.name

    class Weights:
        def __init__(self, dtype, address, count):
            self.dtype, self.address, self.count = dtype, address, count

    class OnnxParser:
        def __init__(self, network, _logger):
            self.network = network
            self.num_errors = 1 if refuse == "parser" else 0

        def parse_from_file(self, path):
            note("parse_from_file", Path(path).name)
            model = onnx.load_model_from_string(Path(path).read_bytes())
            self.network.model, self.network.folder = model, Path(path).parent
            return refuse != "parser"

        def parse(self, data, path):
            note("parse", Path(path).name)
            self.network.model, self.network.folder = onnx.load_model_from_string(data), Path(path).parent
            return True

        def get_error(self, _index):
            return SimpleNamespace(desc=lambda: "no importer for operator Foo")

    class LoadingParser(OnnxParser):
        def load_model_proto(self, data, path):
            note("load_model_proto", Path(path).name)
            self.parse(data, path)
            self.open = {t.name: t for t in self.network.model.graph.initializer if t.external_data}
            return True

        def load_initializer(self, name, address, size_bytes):
            note("load_initializer", address)
            tensor = self.open.pop(name, None)
            if tensor is None:
                return False
            array = view(address, tuple(tensor.dims), str(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)))
            assert array.nbytes == size_bytes
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(array), name))
            return True

        def parse_model_proto(self):
            note("parse_model_proto")
            return not self.open

    class Builder:
        def __init__(self, logger):
            self.logger = logger

        def create_network(self, flags):
            return Network(flags)

        def create_builder_config(self):
            return Config()

        def create_optimization_profile(self):
            return Profile()

        def build_serialized_network(self, network, config):
            note("build_serialized_network", config.builder_optimization_level)
            monitor = config.progress_monitor
            if monitor:
                monitor.phase_start("Building", "", 2)
                assert monitor.step_complete("Building", 0)
                monitor.phase_finish("Building")
            self.logger.log(Severity.INFO, "chose a tactic")
            if refuse == "builder":
                self.logger.log(Severity.ERROR, "could not find any implementation")
                return None
            arrays = map_weights(network.model, network.folder / "weights.bin") if weights != "loaded" else {}
            for tensor in network.model.graph.initializer:
                if tensor.name in arrays:
                    tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(arrays[tensor.name]), tensor.name))
            head = json.dumps(config.profiles).encode()
            return np.frombuffer(len(head).to_bytes(8) + head + network.model.SerializeToString(), dtype=np.uint8)

    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, plan):
            note("deserialize_cuda_engine")
            data = bytes(plan)
            size = int.from_bytes(data[:8])
            try:
                return Engine(json.loads(data[8 : 8 + size]), data[8 + size :])
            except ValueError:
                self.logger.log(Severity.ERROR, "Failed to deserialize")
                return None

    class Engine:
        def __init__(self, profiles, data):
            self.profiles, self.num_optimization_profiles = profiles, len(profiles)
            self.model = onnx.load_model_from_string(data)
            self.session = OrtSession(data, {})
            graph = self.model.graph
            self.values = {v.name: v.type.tensor_type for v in (*graph.input, *graph.output)}
            self.num_io_tensors = len(self.values)
            self.input_names = [v.name for v in graph.input]
            largest = (shapes["input_ids"][2] for shapes in profiles)
            self.device_memory_size_v2 = 1000 * max(most * longest for most, longest in largest)

        def get_tensor_name(self, index):
            return list(self.values)[index]

        def get_tensor_mode(self, name):
            return trt.TensorIOMode.INPUT if name in self.input_names else trt.TensorIOMode.OUTPUT

        def get_tensor_dtype(self, name):
            dtype = onnx.helper.tensor_dtype_to_np_dtype(self.values[name].elem_type)
            return f"DataType.{NAMES[str(dtype)]}"

        def get_tensor_shape(self, name):
            return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in self.values[name].shape.dim)

        def get_tensor_profile_shape(self, name, profile):
            return [tuple(shape) for shape in self.profiles[profile][name]]

        def create_execution_context(self, strategy):
            note("create_execution_context", strategy.name)
            return Context(self)

        def create_engine_inspector(self):
            layers = [{"Name": node.name, "LayerType": node.op_type} for node in self.model.graph.node]
            return SimpleNamespace(get_engine_information=lambda _form: json.dumps({"Layers": layers}))

    class Context:
        def __init__(self, engine):
            self.engine, self.shapes, self.addresses, self.profile = engine, {}, {}, 0
            self.device_memory = None

        def set_optimization_profile_async(self, profile, stream):
            note("set_optimization_profile_async", profile)
            assert stream
            self.profile = profile
            return True

        def set_input_shape(self, name, shape):
            note("set_input_shape", name, tuple(shape))
            smallest, _, largest = self.engine.profiles[self.profile][name]
            inside = all(a <= b <= c for a, b, c in zip(smallest, shape, largest, strict=True))
            if inside:
                self.shapes[name] = tuple(shape)
            return inside

        def set_tensor_address(self, name, address):
            assert set(self.shapes) == set(self.engine.input_names), "shapes come before addresses"
            assert address % 256 == 0
            self.addresses[name] = address
            return True

        def get_tensor_shape(self, name):
            if name in self.shapes:
                return self.shapes[name]
            prompts, tokens = self.shapes["input_ids"]
            axes = [d.dim_param for d in self.engine.values[name].shape.dim]
            if "prompt" in axes[:1]:
                sizes = {"prompt": prompts, "token": tokens}
                return tuple(sizes.get(a, d) for a, d in zip(axes, self.engine.get_tensor_shape(name), strict=True))
            second = next(shape for key, shape in self.shapes.items() if key != "input_ids")
            declared = self.engine.get_tensor_shape(name)
            rows = second[0] if second[0] != prompts or len(declared) == 2 else prompts
            return (rows, *declared[1:])

        def execute_async_v3(self, stream):
            note("execute_async_v3")
            assert stream
            assert self.device_memory
            if refuse == "enqueue":
                return False
            feeds = {}
            for name in self.engine.input_names:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(self.engine.values[name].elem_type)
                feeds[name] = view(self.addresses[name], self.shapes[name], dtype).copy()
            for name, array in self.engine.session.run(feeds).items():
                assert array.shape == self.get_tensor_shape(name)
                view(self.addresses[name], array.shape, array.dtype)[:] = array
            return True

    flags = ("STRONGLY_TYPED", "EXPLICIT_BATCH")
    trt = SimpleNamespace(
        IProfiler=type("IProfiler", (), {}),
        Builder=Builder,
        BuilderFlag=enum("BuilderFlag", "TF32", "ERROR_ON_TIMING_CACHE_MISS"),
        ExecutionContextAllocationStrategy=enum("Strategy", "STATIC", "ON_PROFILE_CHANGE", "USER_MANAGED"),
        ILogger=ILogger,
        IProgressMonitor=IProgressMonitor,
        LayerInformationFormat=enum("LayerInformationFormat", "ONELINE", "JSON"),
        NetworkDefinitionCreationFlag=IntEnum("NetworkDefinitionCreationFlag", flags, start=1),
        INetworkDefinition=Network if weights == "mapped" else None,
        OnnxParser=LoadingParser if weights == "loaded" else OnnxParser,
        ProfilingVerbosity=enum("ProfilingVerbosity", "LAYER_NAMES_ONLY", "NONE", "DETAILED"),
        Runtime=Runtime,
        TensorIOMode=enum("TensorIOMode", "NONE", "INPUT", "OUTPUT"),
        Weights=Weights,
        __version__=version,
    )
    return Api(trt=trt, name="tensorrt", version=version)


def view(address, shape, dtype):
    dtype = narrow_dtype(str(dtype))
    size = int(np.prod(shape)) * dtype.itemsize
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address)).view(dtype).reshape(shape)


class TwinCuda:
    """The driver's functions over host memory; `fail` makes one of them answer with a code."""

    def __init__(self, *, name="Twin", capability=(9, 0), cuda=13000, free=1 << 34, fail=None):
        self.facts, self.fail = (name, capability, cuda, free), fail
        self.memory, self.calls, self.live, self.handles = {}, [], set(), 0

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            if self.fail and name == self.fail[0]:
                return self.fail[1]
            return getattr(self, "do_" + name, self.handle)(*arguments) or 0

        return call

    @staticmethod
    def put(pointer, value):
        pointer._obj.value = value

    def handle(self, first=None, *_rest):
        """Give whatever is made, such as a stream, a number of its own."""
        if hasattr(first, "_obj"):
            self.handles += 1
            self.put(first, self.handles)

    def do_cuGetErrorName(self, _code, text):
        self.put(text, b"CUDA_ERROR_OUT_OF_MEMORY")

    def do_cuDeviceGetName(self, text, _size, _device):
        text.value = self.facts[0].encode()

    def do_cuDeviceGetAttribute(self, value, attribute, _device):
        self.put(value, self.facts[1][attribute.value - 75])

    def do_cuDriverGetVersion(self, value):
        self.put(value, self.facts[2])

    def do_cuMemGetInfo_v2(self, free, total):
        self.put(free, self.facts[3])
        self.put(total, 1 << 34)

    def take(self, pointer, size):
        buffer = (ctypes.c_ubyte * (size.value + 256))()
        start = -(-ctypes.addressof(buffer) // 256) * 256
        ctypes.memset(start, 0xFF, size.value)
        self.memory[start] = buffer
        self.put(pointer, start)

    def do_cuMemAlloc_v2(self, pointer, size):
        self.take(pointer, size)

    def do_cuMemHostAlloc(self, pointer, size, _flags):
        self.take(pointer, size)

    def do_cuMemFree_v2(self, address):
        del self.memory[address.value]

    def do_cuMemFreeHost(self, address):
        del self.memory[address.value]

    def do_cuMemcpyHtoDAsync_v2(self, target, source, size, _stream):
        ctypes.memmove(target, source, size.value)

    def do_cuMemcpyDtoHAsync_v2(self, target, source, size, _stream):
        ctypes.memmove(target, source, size.value)
