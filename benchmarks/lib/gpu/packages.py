"""What a bundle holds, by version of vLLM: found by importing its engine where only the machine's
packages are."""

# What vLLM imports and a machine with torch 2.11, transformers 5.17, numba and their needs lacks.
COMMON = """
annotated-types==0.8.0 blake3==1.0.11 cachetools==8.0.2 cbor2==6.3.0 compressed-tensors==0.17.0 depyf==0.20.0
distro==1.9.0 fastapi==0.136.3 gguf==0.19.0 httpx-sse==0.4.3 jiter==0.19.0 jsonschema==4.26.0
jsonschema-specifications==2025.9.1 lark==1.2.2 loguru==0.7.3 msgspec==0.22.0 openai==2.54.0 oss-harmony==0.0.11
partial-json-parser==0.2.1.1.post7 pybase64==1.5.1 pydantic==2.14.4 pydantic-core==2.50.5 python-json-logger==4.2.0
pyzmq==27.3.0 referencing==0.37.0 rpds-py==2026.9.1 setproctitle==1.3.8 sniffio==1.3.1 starlette==1.10.0
typing-inspection==0.4.5
"""  # noqa: E501
PACKAGES: dict[str, list[str]] = {"0.32.0": COMMON.split(), "0.33.0": COMMON.split()}

# Sources of kernels; kernels of other models, of quantised weights and of other cards; tools.
LEFT_OUT = (
    "*.cu", "*.cuh", "*.h", "*.hpp", "*/tests/*", "*.dist-info/RECORD",
    "vllm/_deepselect_C*", "vllm/_flashkda_C*", "vllm/_flashmla_*", "vllm/_qutlass_C*",
    "vllm/vllm-rs", "vllm/third_party/deep_gemm/*", "vllm/third_party/fmha_sm100/*",
    "vllm/third_party/tml_fa4/*", "vllm/vllm_flash_attn/_vllm_fa2_C*",
    "vllm/vllm_flash_attn/cute/*", "vllm/kernels/helion/*", "vllm/benchmarks/*", "vllm/snapshot/*",
    "vllm/entrypoints/serve/instrumentator/static/*",
)  # fmt: skip

# Of FlashAttention 3: bf16 with heads of 64 and 128 (not keys of 192 beside values of 128), and the
# helpers.
FLASH_ATTENTION = (
    r"FlashAttnFwdCombine.*bfloat16|prepare_varlen|(?<!ILi192EEE)EEELi(64|128)ENS_10bfloat16_tEf"
)
LIBRARIES: dict[str, dict] = {
    "vllm/_C_stable_libtorch.abi3.so": {},
    "vllm/_moe_C_stable_libtorch.abi3.so": {"with_ptx": False},
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": {"kernel": FLASH_ATTENTION},
}

# Packages that vLLM imports at its start, and uses for structured output and tool calls alone.
STAND_INS = (
    "xgrammar",
    "xgrammar.structural_tag",
    "xgrammar.openai_tool_call_schema",
    "llguidance",
)
