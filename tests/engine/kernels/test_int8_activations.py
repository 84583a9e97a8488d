"""Linears on blocks with inputs rounded to 8 bits: whole numbers are exact on every processor, and
a row has the same bits in every batch. The reference is gguf's weights and numpy's sums. And which
models are served so."""

import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from blocks import SCALES, random_blocks
from compiled import need_kernels, need_processor, use_processor, without_kernels
from safetensors.torch import load_file, save_file
from saved_models import load_saved, save_model, served_logits

from smartspec.engine.kernels.cpu import native, quantized_linear
from smartspec.engine.kernels.cpu.panel_linear import panel_linear
from smartspec.engine.kernels.cpu.quantized_linear import (
    INT8_TYPES,
    LIBRARY,
    describe_panels,
    to_block_panels,
)
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.runtime.kernel_report import kernel_report

TYPES = sorted(INT8_TYPES)
EACH_TYPE = pytest.mark.parametrize("block_type", TYPES, ids=lambda kind: kind.name)
MACHINES = ["native", "haswell", "x86-64", pytest.param("skylake-avx512", marks=pytest.mark.slow)]


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest):
    need_kernels(LIBRARY)
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "native":
            use_processor(patch, request.param)
        yield request.param


def product(
    blocks: torch.Tensor,
    block_type,
    x: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    terms: int = 1,
) -> np.ndarray:
    panels = to_block_panels(blocks, block_type)
    of_bias = None if bias is None else torch.from_numpy(bias)
    weight = describe_panels(panels, block_type, len(blocks), of_bias, rounds=terms)
    return panel_linear(torch.from_numpy(x), weight).numpy()


def rounded(x: np.ndarray, terms: int = 1) -> np.ndarray:
    """float64: x as its blocks of 32 stand for it."""
    if terms == 2:
        first = rounded(x)
        return first + rounded((x - first).astype(np.float32))
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = largest / np.float32(127)
    factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return (np.rint(blocks * factor) * scale.astype(np.float64)).reshape(x.shape)


def whole_blocks(outputs: int, inputs: int, block_type, seed: int) -> torch.Tensor:
    """Random blocks whose scales and minima are whole numbers."""
    block_bytes = gguf.GGML_QUANT_SIZES[block_type][1]
    blocks = random_blocks(outputs, inputs, block_type, seed).view(outputs, -1, block_bytes)
    for place in SCALES.get(block_type.name, (0,)):
        one = np.array([-2.0 if place == 2 else 1.0], dtype=np.float16).view(np.uint8)
        blocks[..., place : place + 2] = torch.from_numpy(one)
    return blocks.reshape(outputs, -1)


def weights_of(blocks: torch.Tensor, block_type) -> np.ndarray:
    return gguf.dequantize(blocks.numpy(), block_type).astype(np.float64)


@EACH_TYPE
@pytest.mark.parametrize("extreme", [False, True], ids=["any", "extreme"])
def test_whole_numbers_are_exact(machine, block_type, extreme):
    """Scales of one, so that every partial sum is a whole number; extreme: of the largest
    magnitudes, all in step."""
    random = np.random.default_rng(0)
    blocks = whole_blocks(75, 256, block_type, seed=1)
    x = random.integers(-127, 128, (23, 256)).astype(np.float32)
    x[:, ::32] = 127.0 * random.choice([-1, 1], (23, 8))
    if extreme:
        ends = {"Q8_0": (-128, -127, 127)}.get(block_type.name)
        if ends is not None:
            blocks.view(75, 8, 34)[:, :, 2:] = torch.tensor(ends, dtype=torch.int8).view(
                torch.uint8
            )[torch.arange(75)[:, None, None] % 3]
        x = 127.0 * np.sign(x + 0.5).astype(np.float32)
        x[0], x[1] = 127.0, -127.0
    weights = weights_of(blocks, block_type)
    partial = np.cumsum(x[:, None].astype(np.float64) * weights, axis=-1)
    expected = partial[..., -1]
    whole = np.abs(partial[..., 31::32]).max(axis=-1) < 2**24
    assert whole.mean() > 0.5, "sums are whole numbers that fp32 has"
    found = product(blocks, block_type, x)
    np.testing.assert_array_equal(found[whole], expected[whole])


@EACH_TYPE
@pytest.mark.parametrize("terms", [1, 2])
def test_products_are_those_of_rounded_inputs(machine, block_type, terms):
    random = np.random.default_rng(2)
    blocks = random_blocks(37, 512, block_type)
    x = (random.standard_normal((19, 512)) * np.exp(random.standard_normal((19, 1)) * 8)).astype(
        np.float32
    )
    x[3, 32:96] = 0.0
    bias = random.standard_normal(37).astype(np.float32)
    weights, exact = weights_of(blocks, block_type), rounded(x, terms)
    assert (
        np.abs(exact - x) <= np.abs(x).max(axis=1, keepdims=True) * (1.01 / 254.0) ** terms
    ).all()
    # A block's sum is rounded when it is scaled and when it is added, and so is its minimum's.
    bound = (
        4 * (512 // 32 * terms + 1) * 2.0**-24 * (np.abs(exact) @ np.abs(weights).T + np.abs(bias))
    )
    assert (
        np.abs(product(blocks, block_type, x, bias, terms=terms) - (exact @ weights.T + bias))
        <= bound
    ).all()


@EACH_TYPE
@pytest.mark.parametrize("terms", [1, 2])
def test_a_row_has_the_same_bits_in_every_batch(machine, block_type, terms):
    blocks = random_blocks(70, 512, block_type)
    x = np.random.default_rng(0).standard_normal((600, 512)).astype(np.float32)
    expected = product(blocks, block_type, x, terms=terms)
    assert product(blocks, block_type, x[:0], terms=terms).shape == (0, 70)
    for num_rows in (*range(1, 36), 127, 260):
        found = product(blocks, block_type, x[-num_rows:], terms=terms)
        np.testing.assert_array_equal(found, expected[-num_rows:])


@EACH_TYPE
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("other", MACHINES[1:])
def test_every_processor_gives_the_same_bits(block_type, other, terms):
    need_kernels(LIBRARY)
    blocks = random_blocks(45, 512, block_type)
    x = np.random.default_rng(3).standard_normal((20, 512)).astype(np.float32)
    x[2], x[5, 64:96], x[7, 7] = x[2] * 1e-42, 0.0, np.nan
    expected = product(blocks, block_type, x, terms=terms)
    with pytest.MonkeyPatch.context() as patch:
        use_processor(patch, other)
        np.testing.assert_array_equal(product(blocks, block_type, x, terms=terms), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_no_number_and_disturbs_no_other(machine, value):
    block_type = gguf.GGMLQuantizationType.Q4_1
    blocks = random_blocks(40, 128, block_type)
    x = np.random.default_rng(0).standard_normal((21, 128)).astype(np.float32)
    expected = product(blocks, block_type, x)
    for row, place in ((0, 0), (9, 77), (20, 127)):
        bad = x.copy()
        bad[row, place] = value
        found = product(blocks, block_type, bad)
        assert np.isnan(found[row]).all()
        np.testing.assert_array_equal(
            np.delete(found, row, axis=0), np.delete(expected, row, axis=0)
        )


@pytest.mark.parametrize(
    "largest", [0.0, 1e-45, 5e-45, 3e-43, 1e-40, 1.2e-38, 1e-36, 1e-31, 1e-30, 1e30, 3e35]
)
def test_blocks_of_zeros_and_of_tiny_and_huge_numbers(machine, largest):
    """A quant is half a step from its number at most, of a step that is the scale; a scale has no
    more digits than numbers so small have."""
    block_type = gguf.GGMLQuantizationType.Q8_0
    weights = np.eye(64, dtype=np.float32)
    blocks = torch.from_numpy(gguf.quantize(weights, block_type))
    x = np.random.default_rng(0).uniform(-1, 1, (5, 64)) * largest
    x[:, [0, 32]] = largest
    x = x.astype(np.float32)
    found = product(blocks, block_type, x)
    step = np.abs(x).reshape(5, 2, 32).max(axis=-1).repeat(32, axis=-1) / 127 + 2.0**-149
    of_weights = weights_of(blocks, block_type)
    bound = 0.5001 * step + 1e-6 * np.abs(x) + 2.0**-149
    assert (np.abs(found - x.astype(np.float64) @ of_weights.T) <= bound).all()


TEXT = np.arange(9, dtype=np.int32)


def loaded_in(folder: Path, **options: str) -> LoadedModel:
    return load_saved(folder, **{"quantization": "int8"} | options)


def test_a_model_on_blocks_is_served_in_8_bits_where_the_processor_has_instructions(tmp_path):
    need_kernels(LIBRARY)
    folder = save_model(tmp_path)
    loaded, plain = loaded_in(folder), loaded_in(folder, activations="fp32")
    assert loaded.activations == ("int8" if quantized_linear.int8_instructions() else "fp32")
    assert plain.activations == "fp32" and "inputs in fp32" in kernel_report(plain)["linear"]
    rounded = loaded_in(folder, activations="int8")
    assert (
        rounded.activations == "int8"
        and "inputs rounded to 8 bits (" in kernel_report(rounded)["linear"]
    )
    assert rounded.profile_key != plain.profile_key, "a profile of one must not serve the other"
    logits, expected = served_logits(rounded, TEXT), served_logits(plain, TEXT)
    assert not torch.equal(logits, expected)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.05 * float(expected.std()))


def test_what_cannot_be_served_in_8_bits_is_refused(tmp_path, monkeypatch):
    need_kernels(LIBRARY)
    folder = save_model(tmp_path)
    with pytest.raises(ValueError, match="unknown activations 'int4': use auto, int8, fp32"):
        loaded_in(folder, activations="int4")
    with pytest.raises(ValueError, match=r"has none: use quantization int8 or int4"):
        load_saved(folder, activations="int8")
    assert load_saved(folder).activations == "fp32", "its weights are in fp32"
    without_kernels(monkeypatch)
    with pytest.raises(ValueError, match="but this machine has none: use auto or fp32"):
        load_model("anything", device="cpu", activations="int8")


def test_a_model_that_suffers_keeps_fp32(tmp_path, caplog):
    """One activation of the head's input is so large that the others of its block become zeros, and
    has no weight."""
    need_kernels(LIBRARY)
    if not quantized_linear.int8_instructions():
        pytest.skip("this processor has no instructions for 8-bit inputs")
    folder = save_model(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e4
    tensors["lm_head.weight"] *= 30
    tensors["lm_head.weight"][:, 0] = 0.0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = loaded_in(folder)
    assert (
        loaded.activations == "fp32"
        and "is served with activations in fp32: in 8 bits the perplexity" in caplog.text
    )
    plain = loaded_in(folder, activations="fp32")
    assert torch.equal(served_logits(loaded, TEXT), served_logits(plain, TEXT))
    assert loaded_in(folder, activations="int8").activations == "int8", (
        "it is served where it is required"
    )
    assert "with activations in 8 bits: the perplexity" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("machine_name", ["native", "haswell", "x86-64"])
def test_odd_sizes_are_clean_under_sanitizers(tmp_path, machine_name):
    """Every type, 0 to 33 rows, outputs that fill no panel, in memory of exactly their size."""
    need_processor(machine_name)
    source, program = Path(__file__).with_name("int8_sizes.c"), tmp_path / "sizes"
    flags = [flag for flag in native.FLAGS if not flag.startswith(("-O", "-march"))]
    sanitizers = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    headers = Path(native.__file__).parent
    command = [
        *native.compiler_command(),
        f"-march={machine_name}",
        *flags,
        *sanitizers,
        f"-I{headers}",
    ]
    subprocess.run([*command, str(source), "-o", str(program), "-lm"], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-2000:]
