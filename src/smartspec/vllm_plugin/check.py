"""The check of a version of vLLM: members that this plugin needs. `python -m
smartspec.vllm_plugin.check [PATH]`.

It reads vLLM's source and runs none of it. So it works on a clone of vLLM's main branch, on an
unpacked wheel, and in an environment without torch. It includes the checks of the scheduler and the
workers at their start (compatibility.py).
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from smartspec.vllm_plugin.compatibility import (
    ATTRIBUTES,
    CAPACITY,
    MANAGER,
    METHODS,
    RUNNER,
    version_problem,
)


@dataclass(frozen=True)
class Need:
    """The members of a class of vLLM that the plugin uses."""

    file: str  # below the package
    owner: str  # the name of the class, "" for the file itself
    # parameters in order, as far as they matter
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # fields, properties, or attributes that its methods set on self
    attributes: tuple[str, ...] = ()
    base: tuple[str, str] | None = None  # file and name of a class from which it may inherit them


NEEDS = (
    Need(
        "v1/core/sched/scheduler.py",
        "Scheduler",
        METHODS,
        ATTRIBUTES,
        base=("v1/core/sched/interface.py", "SchedulerInterface"),
    ),
    Need(
        "v1/core/sched/async_scheduler.py",
        "AsyncScheduler",
        {"_update_after_schedule": METHODS["_update_after_schedule"]},
    ),
    Need(
        "v1/core/sched/output.py",
        "SchedulerOutput",
        attributes=(
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "scheduled_spec_decode_tokens",
            "finished_req_ids",
            "num_invalid_spec_tokens",
            "num_spec_tokens_to_schedule",
        ),
    ),
    Need("v1/outputs.py", "ModelRunnerOutput", attributes=("req_id_to_index", "sampled_token_ids")),
    Need("v1/engine/__init__.py", "EngineCoreOutputs", attributes=("outputs",)),
    Need("v1/engine/__init__.py", "EngineCoreOutput", attributes=("new_token_ids",)),
    Need("v1/outputs.py", "DraftTokenIds", attributes=("req_ids", "draft_token_ids")),
    Need(
        "v1/request.py",
        "Request",
        attributes=(
            "request_id",
            "num_tokens",
            "num_prompt_tokens",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_stale_output_tokens",
            "spec_token_ids",
            "max_tokens",
            "sampling_params",
            "all_token_ids",
            "cache_salt",
        ),
    ),
    Need("sampling_params.py", "SamplingParams", attributes=("extra_args",)),
    Need("tokenizers/registry.py", "", {"cached_tokenizer_from_config": ("model_config",)}),
    Need(
        "config/scheduler.py",
        "SchedulerConfig",
        {"get_scheduler_cls": ("self",)},
        ("scheduler_cls", "max_num_batched_tokens"),
    ),
    Need(
        "config/speculative.py",
        "SpeculativeConfig",
        attributes=(
            "method",
            "model",
            "num_speculative_tokens",
            "num_speculative_tokens_per_batch_size",
            "draft_model_config",
            "enable_adaptive_verification",
            "parallel_drafting",
        ),
    ),
    Need(
        "config/parallel.py",
        "ParallelConfig",
        attributes=(
            "pipeline_parallel_size",
            "tensor_parallel_size",
            "data_parallel_size",
            "data_parallel_index",
            "distributed_executor_backend",
            "world_size",
        ),
    ),
    Need(
        "config/model.py",
        "ModelConfig",
        {"get_vocab_size": ("self",), "get_total_num_hidden_layers": ("self",)},
        ("model", "dtype", "quantization", "enforce_eager", "is_moe", "is_hybrid", "hf_config"),
    ),
    Need(
        "config/compilation.py",
        "CompilationConfig",
        attributes=("cudagraph_mode", "cudagraph_capture_sizes"),
    ),
    Need("config/compilation.py", "CUDAGraphMode", {"has_full_cudagraphs": ("self",)}),
    Need("config/cache.py", "CacheConfig", attributes=("num_gpu_blocks", "block_size")),
    Need(
        "config/vllm.py",
        "VllmConfig",
        attributes=(
            "additional_config",
            "instance_id",
            "use_v2_model_runner",
            "model_config",
            "speculative_config",
            "parallel_config",
            "scheduler_config",
            "compilation_config",
        ),
    ),
    Need(
        "v1/executor/abstract.py",
        "Executor",
        {"_init_executor": ("self",), "take_draft_token_ids": ("self",)},
    ),
    Need(
        "v1/executor/multiproc_executor.py",
        "MultiprocExecutor",
        {"_init_executor": ("self",), "collective_rpc": ("self", "method")},
        ("supports_pp", "supports_async_scheduling"),
    ),
    Need(
        "v1/executor/uniproc_executor.py", "UniProcExecutor", {"collective_rpc": ("self", "method")}
    ),
    Need(
        "v1/worker/gpu_model_runner.py",
        "GPUModelRunner",
        {"execute_model": ("self", "scheduler_output", "intermediate_tensors")},
        ("speculative_config", "model_config"),
    ),
    Need("platforms/interface.py", "Platform", {"get_device_name": ("cls",), "is_cpu": ("self",)}),
    Need(
        "v1/metrics/loggers.py",
        "AggregateStatLoggerBase",
        {
            "__init__": ("self", "vllm_config", "engine_indexes"),
            "record": (
                "self",
                "scheduler_stats",
                "iteration_stats",
                "mm_cache_stats",
                "engine_idx",
            ),
            "log_engine_initialized": ("self",),
        },
        base=("v1/metrics/loggers.py", "StatLoggerBase"),
    ),
)


# Without these, adaptive verification goes by vLLM's own step times, and all else works.
ADAPTIVE_NEEDS = (
    Need(
        "v1/worker/gpu/spec_decode/adaptive_verification.py",
        "AdaptiveVerificationManager",
        {name: ("self", *parameters) for name, parameters in MANAGER.items()},
        (CAPACITY,),
    ),
    Need(
        "v1/worker/gpu/model_runner.py",
        "GPUModelRunner",
        {name: ("self", *parameters) for name, parameters in RUNNER.items()},
        ("adaptive_verification",),
    ),
)


TESTED = {  # methods of vLLM by where they ran with the plugin, see docs/vllm-how.md
    "in vLLM's CPU build and on a GPU": "ngram, eagle3",
    "in vLLM's CPU build": "draft_model, eagle, P-EAGLE, mtp, dflash, medusa, suffix, custom_class",
    "nowhere yet": "dspark, PARD, Gemma's and Step's heads",
}


def package_of(path: Path) -> Path:
    """Return the package vllm at a path, of a clone or of a folder of packages. FileNotFoundError
    without one."""
    for folder in (path, path / "vllm"):
        if (folder / "v1").is_dir() and (folder / "config").is_dir():
            return folder
    raise FileNotFoundError(
        f"{path} holds no vLLM: give a clone, an unpacked wheel or a folder of installed packages"
    )


def installed_package() -> Path | None:
    """Return the package vllm that this interpreter would import, without an import. None without
    one."""
    spec = find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def version_of(package: Path) -> str | None:
    """Return the version in _version.py, which builds write. None in a clone."""
    path = package / "_version.py"
    text = path.read_text("utf-8") if path.exists() else ""
    match = re.search(r"""^__version__ *=[^'"\n]*['"]([^'"\n]+)['"]""", text, re.MULTILINE)
    return match.group(1) if match else None


def missing_members(package: Path, needs: tuple[Need, ...] = NEEDS) -> list[str]:
    """Return one line for each member that the plugin needs and this source lacks."""
    return [line for need in needs for line in _missing_members(package, need)]


def _missing_members(package: Path, need: Need) -> Iterator[str]:
    path, name = package / need.file, need.owner or need.file
    if (owner := _class(path, need.owner)) is None:
        yield f"{name}: {need.file} {'has no such class' if path.is_file() else 'does not exist'}"
        return
    base = None if need.base is None else _class(package / need.base[0], need.base[1])
    classes = [owner] if base is None else [base, owner]
    bodies = [node for each in classes for node in each.body]
    methods = {
        node.name: node
        for node in bodies
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for member, expected in need.methods.items():
        if member not in methods:
            yield f"{name}.{member} does not exist"
        elif (parameters := _parameters(methods[member]))[: len(expected)] != expected:
            yield f"{name}.{member} takes {', '.join(parameters)}; expected {', '.join(expected)}"
    known = set(methods).union(*map(_fields, classes))
    yield from (
        f"{name}.{member} does not exist" for member in need.attributes if member not in known
    )


def _class(path: Path, name: str) -> ast.ClassDef | ast.Module | None:
    tree = ast.parse(path.read_text("utf-8")) if path.is_file() else None
    if tree is None or not name:
        return tree
    nodes = ast.walk(tree)
    return next(
        (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name), None
    )


def _parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    arguments = method.args
    return tuple(
        each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    )


def _fields(owner: ast.ClassDef | ast.Module) -> set[str]:
    """Return the names that a class's body assigns, and those that its methods set on self."""
    names = set()
    for node in ast.walk(owner):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        for target in (each for outer in targets for each in ast.walk(outer)):
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                names.add(target.attr)
            elif isinstance(target, ast.Name) and node in owner.body:
                names.add(target.id)
    return names


def main(arguments: list[str] | None = None) -> int:
    """Print the version and the missing members. Exit status: 0, 1 where some are missing, 2
    without a vLLM."""
    parser = argparse.ArgumentParser(
        prog="python -m smartspec.vllm_plugin.check", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        help="clone, unpacked wheel or folder (default: the installed one)",
    )
    path = parser.parse_args(arguments).path
    try:
        package = installed_package() if path is None else package_of(path)
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if package is None:
        print("error: vLLM is not installed here: give the path of its source", file=sys.stderr)
        return 2
    version = version_of(package)
    print(f"vLLM {version or 'of a clone'} in {package}")
    if version is not None and (problem := version_problem(version)):
        print(f"{problem}: the scheduler would keep vLLM's own")
    lines = missing_members(package)
    num_needs = sum(len(need.methods) + len(need.attributes) for need in NEEDS)
    print("\n".join(lines) if lines else f"all {num_needs} members that the plugin needs are there")
    print("\n".join(f"tested {where}: {methods}" for where, methods in TESTED.items()))
    for line in missing_members(package, ADAPTIVE_NEEDS):
        print(f"beside adaptive verification, vLLM's own step times are used: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
