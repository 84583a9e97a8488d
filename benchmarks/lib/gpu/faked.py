"""Libraries that stand for NVIDIA's driver where there is none: enough for vLLM to see an H100,
nothing computes."""

import subprocess
from pathlib import Path

# What vLLM's extensions want of libcuda when they are loaded. Each call fails.
DRIVER_CALLS = """
cuCtxGetCurrent cuCtxSetCurrent cuDeviceGetAttribute cuDevicePrimaryCtxRetain cuGetErrorString cuGetProcAddress_v2
cuMemAddressFree cuMemAddressReserve cuMemCreate cuMemGetAllocationGranularity cuMemMap cuMemRelease cuMemSetAccess
cuMemUnmap cuPointerGetAttribute cuTensorMapEncodeTiled
"""  # noqa: E501
DRIVER = "".join(f"int {name}(void) {{ return 100; }}\n" for name in DRIVER_CALLS.split())
NVML = """
#include <string.h>
typedef void *device;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { return "no driver"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) { *found = (void *)1; return 0; }
int nvmlDeviceGetIndex(device which, unsigned *index) { *index = 0; return 0; }
int nvmlDeviceGetName(device which, char *name, unsigned size) { strncpy(name, "NVIDIA H100", size); return 0; }
int nvmlDeviceGetUUID(device which, char *name, unsigned size) { strncpy(name, "GPU-0", size); return 0; }
int nvmlDeviceGetCudaComputeCapability(device which, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetNumaNodeId(device which, unsigned *node) { return 3; }
int nvmlDeviceGetMemoryInfo(device which, unsigned long long *found) {
    found[0] = 85520809984ULL; found[1] = 85000000000ULL; found[2] = 520809984ULL; return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { strncpy(version, "580.0", size); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
"""  # noqa: E501


def build(folder: Path) -> None:
    """Both libraries, in a folder for LD_LIBRARY_PATH. Needs a C compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("libcuda.so.1", DRIVER), ("libnvidia-ml.so.1", NVML)):
        source = folder / f"{name}.c"
        source.write_text(text)
        subprocess.run(
            ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, source],
            check=True,
        )
